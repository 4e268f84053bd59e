"""A client that does not read: its backlog is bounded, losses are reported, other clients continue.

With the default policies a message waits in the backlog while the socket is full, and is dropped
when the backlog is full too. With notices on, the client receives `CMSG !/lost` with the number
exactly where messages are missing (PROTOCOL, "A slow client" and "Notices").
"""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path

import pytest

from tests.support.bus import Bus, running_bus
from tests.support.flood import send_until_held
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient

LOST = b"CMSG !/lost\0"
PAYLOAD_BYTES = 100
BACKLOG_MESSAGES = 100


def message(number: int, size: int = PAYLOAD_BYTES) -> bytes:
    head = b"MSG slow\0%08d" % number
    return head + bytes(size - len(head))


def number_of(packet: bytes) -> int:
    return int(packet.partition(b"\0")[2][:8])


def socket_capacity(size: int) -> int:
    """How many packets of this size the kernel holds for a client that does not read.

    Measured with a socket like the server's ends by default, which ask for 212,992 bytes.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)
        for sent in range(1_000_000):
            try:
                ours.send(bytes(size), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return sent
    raise AssertionError("a socket without an end")


@contextmanager
def slow_and_others(
    directory: Path, *limits: str, notices: bool = True
) -> Iterator[tuple[RawClient, RawClient, RawClient]]:
    """A subscriber that will be slow, and a publisher on each of the two workers."""
    options = [option for limit in limits for option in ("--limit", limit)]
    with (
        running_bus(directory, *options) as bus,
        clients_on_each(bus, 2, 2) as ((slow, same), (other, _)),
    ):
        if notices:
            slow.control(b"!/notices/on")
        slow.sub(b"slow")
        slow.whoami()
        yield slow, same, other


def publish(publisher: RawClient, neighbour: RawClient, numbers: range, size: int) -> None:
    """Publish, and wait until all of it is the slow client's, by a barrier of its `neighbour`'s."""
    for number in numbers:
        publisher.send(message(number, size))
    publisher.whoami()
    neighbour.whoami()


@pytest.mark.parametrize("from_other_worker", [False, True])
@pytest.mark.parametrize("size", [PAYLOAD_BYTES, 5_000])
def test_the_newest_messages_are_dropped_at_the_message_limit(
    tmp_path: Path, size: int, from_other_worker: bool
) -> None:
    """No message follows the gap, and it is reported nevertheless."""
    kept = socket_capacity(size) + BACKLOG_MESSAGES
    lost = 250
    with slow_and_others(tmp_path, f"backlog_messages_max={BACKLOG_MESSAGES}") as clients:
        slow, same, other = clients
        publisher = other if from_other_worker else same
        publish(publisher, same, range(kept + lost), size)
        received = [slow.receive() for _ in range(kept)]
        assert received == [message(number, size) for number in range(kept)]
        assert slow.receive() == LOST + b"%d" % lost
        slow.receive_nothing()
        publish(publisher, same, range(7, 9), size)
        assert slow.sync() == [message(7, size), message(8, size)]


def test_the_newest_messages_are_dropped_at_the_byte_limit(tmp_path: Path) -> None:
    size, backlog = 10_000, 10
    kept = socket_capacity(size) + backlog
    with slow_and_others(tmp_path, f"backlog_bytes_max={size * backlog}") as (slow, same, _):
        publish(same, same, range(kept + 40), size)
        received = slow.sync()
        assert received == [*(message(number, size) for number in range(kept)), LOST + b"40"]


def test_without_notices_a_gap_is_not_reported(tmp_path: Path) -> None:
    kept = socket_capacity(PAYLOAD_BYTES) + BACKLOG_MESSAGES
    with slow_and_others(tmp_path, f"backlog_messages_max={BACKLOG_MESSAGES}", notices=False) as (
        slow,
        same,
        _,
    ):
        publish(same, same, range(kept + 40), PAYLOAD_BYTES)
        assert slow.sync() == [message(number) for number in range(kept)]
        publish(same, same, range(1), PAYLOAD_BYTES)
        assert slow.sync() == [message(0)]


def test_every_gap_is_reported_at_its_place(tmp_path: Path) -> None:
    """Whatever the pace: received and lost make up all that was published, in order."""
    chance = random.Random(3)
    with slow_and_others(tmp_path, f"backlog_messages_max={BACKLOG_MESSAGES}") as clients:
        slow, same, other = clients
        published = 0
        received: list[bytes] = []
        for _ in range(60):
            burst = chance.randrange(500)
            publisher = chance.choice((same, other))
            publish(publisher, same, range(published, published + burst), PAYLOAD_BYTES)
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
        if packet.startswith(LOST):
            assert not last_was_notice, "two notices of one gap"
            count = int(packet.removeprefix(LOST))
            assert count > 0
            expected += count
        else:
            assert number_of(packet) == expected
            expected += 1
        last_was_notice = packet.startswith(LOST)
    return expected


def test_other_subscribers_lose_nothing(tmp_path: Path) -> None:
    """Bystanders on both workers read everything while the slow client loses nearly everything."""
    with slow_and_others(tmp_path, f"backlog_messages_max={BACKLOG_MESSAGES}") as clients:
        slow, same, other = clients
        for client in (same, other):
            client.sub(b"slow")
            client.whoami()
        for start in range(0, 4_000, 50):
            burst = range(start, start + 50)
            for number in burst:
                other.send(message(number))
            for number in burst:
                assert same.receive() == other.receive() == message(number)
        kept = socket_capacity(PAYLOAD_BYTES) + BACKLOG_MESSAGES
        assert slow.sync()[-1] == LOST + b"%d" % (4_000 - kept)


def test_nothing_is_lost_below_the_default_limits(tmp_path: Path) -> None:
    """A client that pauses for 20,000 messages finds them all, and can go on as before."""
    with slow_and_others(tmp_path) as (slow, same, other):
        publish(other, same, range(20_000), PAYLOAD_BYTES)
        assert slow.sync() == [message(number) for number in range(20_000)]
        publish(other, same, range(100), PAYLOAD_BYTES)
        assert slow.sync() == [message(number) for number in range(100)]


# -- replies -----------------------------------------------------------------------------------
def test_a_client_that_reads_no_replies_is_no_longer_read(bus: Bus) -> None:
    with clients_on_each(bus, 2, 2) as ((client, same), (other, _)):
        asked = send_until_held(client, repeat(b"CMSG !/cred/whoami"), [same])
        for bystander in (same, other):
            bystander.sub(b"k")
            bystander.whoami()
        same.pub(b"k", b"")
        assert same.receive() == other.receive() == b"MSG k\0"
        replies = [client.receive() for _ in range(asked)]
        assert len(set(replies)) == 1
        assert replies[0].startswith(b"CMSG !/cred/whoami\0!/cred/")
        client.receive_nothing()
        client.pub(b"k", b"again")
        assert same.receive() == other.receive() == b"MSG k\0again"


def test_a_client_held_back_by_its_replies_is_sent_its_messages(bus: Bus) -> None:
    """And what it sent meanwhile is published once it reads again, all of it and in order."""
    with clients_on_each(bus, 2, 2) as ((client, same), (other, _)):
        other.sub(b"k")
        other.whoami()
        client.sub(b"news")
        client.whoami()
        asked = send_until_held(client, repeat(b"CMSG !/cred/whoami"), [same])
        for number in range(50):
            same.pub(b"news", b"%d" % number)
        same.whoami()
        received = [client.receive() for _ in range(asked + 50)]
        assert [packet for packet in received if packet.startswith(b"MSG")] == [
            b"MSG news\0%d" % number for number in range(50)
        ]
        for number in range(50):
            client.pub(b"k", b"%d" % number)
        client.whoami()
        assert other.sync() == [b"MSG k\0%d" % number for number in range(50)]
