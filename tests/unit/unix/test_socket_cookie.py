"""The number of a socket is that of all copies of it, and of no other socket."""

import socket

from sbus.unix.socket_cookie import socket_cookie


def test_copies_have_the_same_number_and_others_another() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, ours.dup() as copy:
        assert socket_cookie(copy) == socket_cookie(ours) != socket_cookie(theirs)
