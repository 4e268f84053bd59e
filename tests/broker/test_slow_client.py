"""Clients that do not read, in numbers that no transcript has (PROTOCOL, "A slow client").

What happens to each message: `tests/protocol/10-slow-client.t`.
"""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.bus import running_bus
from tests.support.flood import LOST, filling, limit_options, message, wait_until_received
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient


def numbered(number: int) -> bytes:
    return message(b"%08d" % number, 100)


@contextmanager
def slow_and_others(
    directory: Path, *limits: str
) -> Iterator[tuple[RawClient, RawClient, RawClient]]:
    """A subscriber that will be slow, and a publisher on each of the two workers."""
    with (
        running_bus(directory, *limits) as bus,
        clients_on_each(bus, 2, 2) as ((slow, same), (other, _)),
    ):
        slow.control(b"!/notices/on")
        slow.sub(b"k")
        slow.whoami()
        yield slow, same, other


def publish(publisher: RawClient, neighbour: RawClient, numbers: range) -> None:
    """Publish, and wait until all of it is the slow client's, by a barrier of its `neighbour`'s."""
    for number in numbers:
        publisher.send(numbered(number))
    publisher.whoami()
    neighbour.whoami()


def test_every_gap_is_reported_at_its_place(tmp_path: Path) -> None:
    """Whatever the pace: received and lost make up all that was published, in order."""
    chance = random.Random(3)
    with slow_and_others(tmp_path, "--limit", "backlog_messages_max=100") as (slow, same, other):
        published = 0
        received: list[bytes] = []
        for _ in range(60):
            burst = chance.randrange(500)
            publish(chance.choice((same, other)), same, range(published, published + burst))
            published += burst
            received += read_some(slow, chance.randrange(400))
        received += slow.sync()
        assert account(received) == published
        assert any(packet.startswith(LOST) for packet in received), "the test was too gentle"


def read_some(client: RawClient, packets_max: int) -> list[bytes]:
    """Up to this many of the packets that are here."""
    client.sock.settimeout(0)
    packets = []
    with suppress(BlockingIOError):
        for _ in range(packets_max):
            packets.append(client.sock.recv(1_000))
    return packets


def account(received: list[bytes]) -> int:
    """The number that the next message would have, if all of this is as it must be."""
    expected = 0
    last_was_notice = False
    for packet in received:
        if is_notice := packet.startswith(LOST):
            assert not last_was_notice, "two notices of one gap"
            count = int(packet.removeprefix(LOST))
            assert count > 0
            expected += count
        else:
            assert packet == numbered(expected)
            expected += 1
        last_was_notice = is_notice
    return expected


def test_nothing_is_lost_below_the_default_limits(tmp_path: Path) -> None:
    """A client that pauses for 20,000 messages finds them all, and can go on as before."""
    with slow_and_others(tmp_path) as (slow, same, other):
        for numbers in (range(20_000), range(100)):
            publish(other, same, numbers)
            assert slow.sync() == [numbered(number) for number in numbers]


def test_clients_may_flood_themselves_and_leave_and_are_logged_once(tmp_path: Path) -> None:
    """Each is disconnected in the middle of its own turn, and may leave in the same one."""
    packets = filling()
    with (
        running_bus(tmp_path, *limit_options(), workers=1) as bus,
        bus.connect() as bystander,
    ):
        for leaves in (True, False) * 10:
            with bus.connect() as client:
                client.control(b"blocking/soft/error")
                client.sub(b"k")
                client.whoami()
                for packet in (*packets, message(b"more", 100)):
                    client.send(packet)
                if leaves:
                    client.sock.shutdown(socket.SHUT_WR)
                wait_until_received(client)
                bystander.whoami()
                assert client.receive_until_closed() == packets
        (line,) = bus.stderr_text().splitlines()
        assert "too-slow" in line
