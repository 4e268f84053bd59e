"""A worker dies at any store to the shared memory, and its successor goes on exactly there.

A child process is the worker that dies: it ends before its first store, in another run before its
second one, and so on. Then a successor takes over, and of each message every reader has received
it, or is told that it lost it; one delivery may be admitted as lost although it arrived.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from sbus.limits import Limits
from tests.fuzz.one_process_bus import OneProcessBus, Peer, one_process_bus
from tests.support import compiled_step
from tests.support.dying_child import dies
from tests.support.needs import needs_compiled_step

pytestmark = needs_compiled_step

LIMITS = Limits(log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024)
STORES_MAX = 400
READERS = 3
MESSAGES = [b"MSG a\0first", b"MSG b\0second", b"MSG a\0third"]
LOST = b"CMSG !/lost\0"
PACKETS_LOST = b"CMSG !/error\0packets-lost "


class Outcome(NamedTuple):
    """Of a death."""

    received: list[list[bytes]]
    """By each reader, in its order."""
    lost: list[int]
    """As each reader was told."""
    unprocessed: int
    """As the publisher was told."""


def dies_at(bus: OneProcessBus, store: int) -> bool:
    """Have a child be the first worker and end before this store; False if it made fewer."""

    def act() -> None:
        compiled_step.die_at_store(store)
        while bus.stepped[0].is_awake():
            pass

    return dies(bus.memory.fd, bus.memory.lock.fd, act)


def publish_here(bus: OneProcessBus, publishers: list[Peer]) -> None:
    """The worker that dies reads and places the messages."""
    for message in MESSAGES:
        publishers[0].send(message)


def publish_here_behind_others(bus: OneProcessBus, publishers: list[Peer]) -> None:
    """The worker that dies walks over the first message before it delivers its own ones."""
    publishers[1].send(MESSAGES[0])
    while bus.stepped[1].is_awake():
        pass
    for message in MESSAGES[1:]:
        publishers[0].send(message)


def publish_elsewhere(bus: OneProcessBus, publishers: list[Peer]) -> None:
    """The worker that dies walks over the messages."""
    for message in MESSAGES:
        publishers[1].send(message)
    while bus.stepped[1].is_awake():
        pass


def outcomes(publish: Callable[[OneProcessBus, list[Peer]], None]) -> Iterator[Outcome]:
    """Of a death at each store in turn; the last is without a death."""
    for store in range(STORES_MAX):
        with one_process_bus("slash", LIMITS) as bus:
            readers = [bus.connect(0) for _ in range(READERS)]
            publishers = [bus.connect(0), bus.connect(1)]
            for peer in (*readers, *publishers):
                peer.send(b"CMSG !/notices/on")
            for reader in readers:
                for pattern in (b"SUB a", b"SUB b"):
                    reader.send(pattern)
            bus.settle()
            for publisher in publishers:  # now the routes are known
                for message in MESSAGES:
                    publisher.send(message)
                bus.settle()
            for reader in readers:
                reader.read()
            publish(bus, publishers)
            has_died = dies_at(bus, store)
            bus.replace(0)
            bus.settle()
            yield outcome_of(readers, publishers)
            if not has_died:
                assert store > READERS * len(MESSAGES)
                return
    raise AssertionError("it makes too many stores")


def outcome_of(readers: list[Peer], publishers: list[Peer]) -> Outcome:
    received, lost, unprocessed = [], [], 0
    for reader in readers:
        packets = reader.read()
        received.append([packet for packet in packets if not packet.startswith(LOST)])
        counts = [packet.removeprefix(LOST) for packet in packets if packet.startswith(LOST)]
        lost.append(sum(map(int, counts)))
    for publisher in publishers:
        for packet in publisher.read():
            unprocessed += int(packet.removeprefix(PACKETS_LOST).split()[0])
    return Outcome(received, lost, unprocessed)


def is_in_order(received: list[bytes]) -> bool:
    """Whether messages came in their order, and none twice."""
    numbers = [MESSAGES.index(packet) for packet in received]
    return numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("publish", "unlogged"), [(publish_here, 3), (publish_here_behind_others, 2)]
)
def test_messages_between_clients_of_one_worker_are_admitted_to_those_who_lost_them(
    publish: Callable[[OneProcessBus, list[Peer]], None], unlogged: int
) -> None:
    """The publisher is told of too many packets after a death in the last `recv`, which finds none,
    and after one between a place in the order and the store that tells of it."""
    found = list(outcomes(publish))
    told_of_too_many = 0
    for outcome in found:
        assert all(map(is_in_order, outcome.received))
        accounted = [len(got) + lost for got, lost in zip(*outcome[:2], strict=True)]
        placed = len(MESSAGES) - outcome.unprocessed
        if outcome.unprocessed and min(accounted) > placed:
            told_of_too_many += 1
        else:
            assert min(accounted) >= placed
            assert sum(accounted) - READERS * placed in (0, 1), "one is in doubt"
    assert told_of_too_many <= 2
    assert found[-1] == Outcome([MESSAGES] * READERS, [0] * READERS, 0)
    assert any(sum(outcome.lost) == READERS * unlogged for outcome in found)


def test_nobody_loses_what_was_published_before_there_were_recipients() -> None:
    """The batch had no recipient when its worker had read what others subscribed to."""
    with one_process_bus("slash", LIMITS) as bus:
        publisher, reader, other = bus.connect(0), bus.connect(0), bus.connect(1)
        reader.send(b"CMSG !/notices/on")
        other.send(b"SUB a")
        bus.settle()
        publisher.send(MESSAGES[0])
        bus.settle()
        assert other.read() == [MESSAGES[0]]
        reader.send(b"SUB a")
        bus.settle()
        bus.replace(0)
        bus.settle()
        assert reader.read() == []


def test_no_subscription_is_forgotten_without_a_notice() -> None:
    for store in range(STORES_MAX):
        with one_process_bus("slash", LIMITS) as bus:
            reader, publisher = bus.connect(0), bus.connect(1)
            reader.send(b"CMSG !/notices/on")
            bus.settle()
            for packet in (b"SUB a", b"CMSG !/cred/whoami"):
                reader.send(packet)
            has_died = dies_at(bus, store)
            bus.replace(0)
            bus.settle()
            told = reader.read()
            publisher.send(MESSAGES[0])
            bus.settle()
            is_subscribed = reader.read() == [MESSAGES[0]]
            assert is_subscribed or told[0].startswith(PACKETS_LOST), store
            if not has_died:
                assert store > 3
                return
    raise AssertionError("it makes too many stores")
