"""One user floods with 200 connections: another user gets its share.

The users are real ones. Shares are counted in messages: while the only worker is stopped both users
fill their sockets, and an observer then sees in which order they were served.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sbus.unix.address import parse_address
from tests.support.bus import Bus, running_bus
from tests.support.processes import stopped, worker_pids
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

pytestmark = needs_root

CONNECTIONS = 200
TURN_MESSAGES_MAX = 64
"""`batch_packets_max`, what is read of one client in one turn."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_everybody() as entered_by_all:
        yield entered_by_all


@contextmanager
def connections_of_stranger(bus: Bus, count: int) -> Iterator[list[socket.socket]]:
    """Connections that another user made, let in by the bus, non-blocking, in this process."""
    address = parse_address(bus.address).sockaddr()
    ours, theirs = socket.socketpair()

    def connect() -> bool:
        with ExitStack() as stack:
            socks = [
                stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                for _ in range(count)
            ]
            for sock in socks:
                sock.connect(address)
                sock.send(b"CMSG !/cred/whoami")
                assert sock.recv(100).startswith(
                    b"CMSG !/cred/whoami\0!/cred/%d/%d/" % (STRANGER, STRANGER)
                )
            socket.send_fds(theirs, [b"!"], [sock.fileno() for sock in socks])
        return True

    with ours, theirs, ExitStack() as stack:
        assert as_user(connect)
        _, fds, _, _ = socket.recv_fds(ours, 1, count)
        socks = [stack.enter_context(socket.socket(fileno=fd)) for fd in fds]
        assert len(socks) == count
        for sock in socks:
            sock.setblocking(False)
        yield socks


def fill(sock: socket.socket, packet: bytes, messages_max: int) -> int:
    """Send until the socket takes no more; how many messages it took."""
    for sent in range(messages_max):
        try:
            sock.send(packet)
        except BlockingIOError:
            return sent
    return messages_max


def test_two_hundred_connections_get_no_more_of_a_worker_than_one(directory: Path) -> None:
    """Of what waits, the other user's messages come as often as the flood's, to their last."""
    with (
        running_bus(directory, "-o", "--limit", "worker_silence_seconds_max=60", workers=1) as bus,
        connections_of_stranger(bus, CONNECTIONS) as socks,
        bus.connect() as observer,
        bus.connect() as other,
    ):
        observer.sub(b"flood")
        observer.sub(b"other")
        observer.whoami()
        other.whoami()
        # Looking a route up is charged by the time that it takes, also on a busy machine.
        socks[0].send(b"MSG flood\0")
        other.pub(b"other", b"")
        assert {observer.receive(), observer.receive()} == {b"MSG flood\0", b"MSG other\0"}
        other.sock.setblocking(False)
        with stopped(worker_pids(bus)[0]):
            flooding = sum(fill(sock, b"MSG flood\0" + bytes(100), 100) for sock in socks)
            # As many as the observer's socket takes with the flood's: sending a backlog would be
            # charged to the observer's user, which is the other's too.
            others = fill(other.sock, b"MSG other\0" + bytes(100), 250)
        assert flooding == 100 * CONNECTIONS
        assert others > 3 * TURN_MESSAGES_MAX
        ahead = 0
        while others:
            if observer.receive().startswith(b"MSG other"):
                others -= 1
                ahead -= 1
            else:
                ahead += 1
            assert abs(ahead) <= 2 * TURN_MESSAGES_MAX
