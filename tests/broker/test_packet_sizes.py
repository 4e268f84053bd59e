"""Packets of every size arrive unaltered. `tests/protocol/12-refusals.t` has those that are too
large."""

import random
import socket
from pathlib import Path

from tests.support.bus import Bus, running_bus
from tests.support.processes import clients_on_each
from tests.support.raw_client import PACKET_BYTES_MAX, RawClient

HEAD = b"MSG k\0"
BOUNDARIES = [
    *(len(HEAD), len(HEAD) + 1, 63, 64, 65, 4_095, 4_096, 4_097, 32_767, 32_768, 32_769),
    *(65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 212_928, 212_960, 212_992, 212_993),
    *(262_143, 262_144, 262_145, PACKET_BYTES_MAX - 1, PACKET_BYTES_MAX),
]


def packet_of(size: int, chance: random.Random) -> bytes:
    return HEAD + chance.randbytes(size - len(HEAD))


def test_every_size_comes_through_unaltered(bus: Bus) -> None:
    chance = random.Random(1)
    sizes = BOUNDARIES + [chance.randrange(len(HEAD), PACKET_BYTES_MAX + 1) for _ in range(60)]
    chance.shuffle(sizes)
    with clients_on_each(bus, 2, 2) as ((publisher, same), (other, _)):
        for client in (publisher, same, other):
            client.sub(b"k")
            client.whoami()
        for size in sizes:
            packet = packet_of(size, chance)
            publisher.send(packet)
            for client in (publisher, same, other):
                assert client.receive() == packet, f"{size} bytes"


def test_large_packets_in_a_row_stay_whole(bus: Bus) -> None:
    """More than any socket buffer holds, so that they pass through the backlog too."""
    chance = random.Random(2)
    packets = [packet_of(chance.randrange(300_000, PACKET_BYTES_MAX), chance) for _ in range(20)]
    with clients_on_each(bus, 2, 2) as ((publisher, same), (other, _)):
        for client in (same, other):
            client.sub(b"k")
            client.whoami()
        for packet in packets:
            publisher.send(packet)
        publisher.whoami()
        assert same.sync() == packets
        assert other.sync() == packets


def test_socket_buffers_need_no_higher_kernel_limit(tmp_path: Path) -> None:
    """The server's ends hold just what a socket holds whose owner asked for 212,992 bytes.

    That is the kernel's usual ceiling (net.core.wmem_max), so nothing here relies on a higher one.
    """
    message = b"MSG k\0" + bytes(100)
    kept = 10
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)
        assert ours.send(bytes(PACKET_BYTES_MAX)) == PACKET_BYTES_MAX
        theirs.recv(1)
        capacity = fill(ours, message)
    with running_bus(tmp_path, "--limit", f"backlog_messages_max={kept}") as bus:
        published = capacity + 200
        with clients_on_each(bus, 2) as ((reader,), (publisher,)):
            reader.sub(b"k")
            reader.whoami()
            for _ in range(published):
                publisher.send(message)
            publisher.whoami()
            bystander_barrier(bus)
            assert reader.sync() == [message] * (capacity + kept)


def fill(sock: socket.socket, packet: bytes) -> int:
    """How many of these packets the socket takes while nobody reads."""
    sent = 0
    while True:
        try:
            sock.send(packet, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return sent
        sent += 1


def bystander_barrier(bus: Bus) -> None:
    """A reply from each of the two workers, whose clients then have all that was published."""
    with RawClient(bus.address) as first, RawClient(bus.address) as second:
        first.whoami()
        second.whoami()
