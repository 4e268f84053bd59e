"""Ending a connection so that the other end reads everything that was sent to it.

Closing a socket that has unread input makes the kernel reset the other end, which then loses what
it had not read. So the input is taken off first. All of this costs a bounded amount of work,
whatever the other end does. This module does not know why a connection ends.
"""

import errno
import select
import socket

from sbus.unix.errno_sets import PEER_GONE

_NOTHING_LEFT = PEER_GONE | {errno.EAGAIN}


def is_hung_up(sock: socket.socket) -> bool:
    """Whether the other end will send no more: what tells the end from an empty packet."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


def discard_unread(sock: socket.socket, packets_max: int) -> None:
    """Take what is unread off a non-blocking socket, and read no more.

    An empty packet cannot be told from the end, so neither stops this; what remains of
    `packets_max` does.
    """
    try:
        for _ in range(packets_max):
            sock.recv(1)
    except OSError as error:
        if error.errno not in _NOTHING_LEFT:
            raise
    try:
        sock.shutdown(socket.SHUT_RD)
        while sock.recv(1):
            pass
    except OSError as error:
        if error.errno not in _NOTHING_LEFT:
            raise


def shut_down(sock: socket.socket) -> None:
    """End the connection in both directions, for every copy of the socket, and close this one."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno not in PEER_GONE:
            raise
    sock.close()
