"""Which descriptors a listener or a connection lets pass, as a client notices."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from sbus.unix.fd_passing import (
    may_carry_descriptors,
    refuse_descriptors,
    refuse_unless_unread,
    send_borrowing_fds,
)
from tests.support.descriptor_store import needs_refusal


def test_connections_refuse_descriptors_as_their_listener_did_when_they_were_made(
    tmp_path: Path,
) -> None:
    address = str(tmp_path / "bus")
    with ExitStack() as stack:
        listener, *clients = [
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            for _ in range(4)
        ]
        listener.bind(address)
        listener.listen()
        refuse_descriptors(listener)
        if may_carry_descriptors(listener):
            pytest.skip("needs Linux 6.16 to refuse descriptors")
        for client, does_refuse in zip(clients, (True, False, True), strict=True):
            refuse_descriptors(listener, does_refuse=does_refuse)
            client.connect(address)
        for client, does_refuse in zip(clients, (True, False, True), strict=True):
            served, _ = listener.accept()
            stack.enter_context(served)
            assert may_carry_descriptors(served) == (not does_refuse)
            if does_refuse:
                with pytest.raises(PermissionError):
                    socket.send_fds(client, [b"packet"], [client.fileno()])
            else:
                socket.send_fds(client, [b"packet"], [client.fileno()])


@needs_refusal
def test_a_connection_refuses_descriptors_once_all_that_came_before_was_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        send_borrowing_fds(theirs, b"before", [theirs.fileno()])
        assert not refuse_unless_unread(ours)
        send_borrowing_fds(theirs, b"still", [theirs.fileno()])
        for _ in range(2):
            assert may_carry_descriptors(ours)
            ours.recv(100)
        assert refuse_unless_unread(ours)
        assert not may_carry_descriptors(ours)
        with pytest.raises(PermissionError):
            send_borrowing_fds(theirs, b"behind", [theirs.fileno()])
