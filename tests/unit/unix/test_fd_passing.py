"""Which descriptors a listener lets pass, as a client notices."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from sbus.unix.fd_passing import may_carry_descriptors, refuse_descriptors


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
            pytest.skip("refusing descriptors needs Linux 6.16")
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
