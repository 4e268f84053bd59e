"""`block` affects only clients of one user: other users neither wait for them nor lose held time.

A message that another user publishes for a stalled client is dropped for that client, and counted.
Every user has its own held time (PROTOCOL, "A slow client").
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.admin import held_seconds
from tests.support.bus import Bus, running_bus
from tests.support.flood import LOST, ask, assert_held, filling, give_turns, limit_options, message
from tests.support.inheritance import Inherited, inherited_connection
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient
from tests.support.secrets import address_of, sync
from tests.support.users import become, directory_for_everybody, needs_root

pytestmark = needs_root

SOFT = (b"blocking/soft/block",)
HARD = (b"blocking/hard/block",)
BACKLOG_MESSAGES = 4
HELD_SECONDS = 0.6
AT_LEAST = 0.9 * HELD_SECONDS
"""Of elapsed time; how much longer it takes is up to the machine. The bus counts held time."""
OWN = [message(b"own %d" % number, 100) for number in range(10)]
FOREIGN = [message(b"foreign %d" % number, 100) for number in range(100)]


@contextmanager
def bus_for_all(workers: int, held_seconds: float = 60) -> Iterator[Bus]:
    limits = limit_options(
        backlog_messages_max=BACKLOG_MESSAGES, user_held_seconds_max=held_seconds
    )
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-go", *limits, workers=workers) as bus,
    ):
        yield bus


@contextmanager
def strangers(bus: Bus, number: int) -> Iterator[list[Inherited]]:
    """Clients of another user."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(inherited_connection(address_of(bus), become()))
            for _ in range(number)
        ]
        for client in clients:
            sync(client)
        yield clients


def choose(client: RawClient | Inherited, choices: Sequence[bytes]) -> None:
    for choice in (b"!/notices/on", *choices):
        client.send(b"CMSG " + choice)
    client.send(b"SUB k")


def publish_and_sync(client: Inherited, packets: Sequence[bytes]) -> None:
    """Publish and have it served."""
    for packet in packets:
        client.send(packet)
    assert sync(client) == []


def hold(publisher: RawClient, witnesses: Sequence[RawClient]) -> None:
    """Publish for a full client until that is not possible."""
    for packet in OWN:
        publisher.send(packet)
        give_turns(witnesses)
    ask(publisher)
    assert_held(publisher, witnesses)


@pytest.mark.parametrize("choices", [SOFT, HARD], ids=["soft", "hard"])
@pytest.mark.parametrize("workers", [1, 3])
def test_publishers_of_other_users_continue_and_their_messages_are_reported_lost(
    workers: int, choices: tuple[bytes, ...]
) -> None:
    """Their clients are on all workers in turn."""
    with (
        bus_for_all(workers) as bus,
        clients_on_each(bus, workers, 3) as places,
        strangers(bus, workers) as others,
    ):
        slow, publisher = places[0][0], places[-1][1]
        witnesses = [own[2] for own in places]
        choose(slow, choices)
        slow.whoami()
        packets = filling()
        for packet in packets:
            publisher.send(packet)
        publisher.whoami()
        hold(publisher, witnesses)
        for other in others:
            publish_and_sync(other, FOREIGN)
        assert_held(publisher, witnesses)
        received = [slow.receive() for _ in range(len(packets) + len(OWN) + 1)]
        gap = LOST + b"%d" % (len(FOREIGN) * len(others))
        kept = received.index(gap) - len(packets)
        assert kept in ((0, 1) if choices is SOFT else (BACKLOG_MESSAGES, BACKLOG_MESSAGES + 1))
        assert received == [*packets, *OWN[:kept], gap, *OWN[kept:]]
        assert slow.sync() == []
        publish_and_sync(others[0], FOREIGN[:1])
        assert slow.sync() == FOREIGN[:1]


@pytest.mark.parametrize("choices", [SOFT, HARD], ids=["soft", "hard"])
def test_a_flood_of_another_user_uses_no_held_time(choices: tuple[bytes, ...]) -> None:
    """A client that is full of it holds back its own user's publishers as ever."""
    with (
        bus_for_all(2, HELD_SECONDS) as bus,
        clients_on_each(bus, 2, 3) as places,
        strangers(bus, 1) as (stranger,),
    ):
        slow, publisher = places[0][0], places[1][1]
        witnesses = [own[2] for own in places]
        choose(slow, choices)
        slow.whoami()
        packets = filling()
        publish_and_sync(stranger, [*packets, *FOREIGN])
        give_turns(witnesses)
        time.sleep(1.2 * HELD_SECONDS)  # time in which no publisher is held
        publish_and_sync(stranger, FOREIGN)
        assert held_seconds(bus) == 0
        began_at = time.monotonic()
        for packet in OWN:
            publisher.send(packet)
            give_turns(witnesses)
        publisher.whoami()
        assert time.monotonic() - began_at > AT_LEAST
        give_turns(witnesses)  # by then the slow client's worker has dropped the messages
        received = slow.sync()[len(packets) :]
        kept = FOREIGN[:BACKLOG_MESSAGES] * (choices is HARD)
        own = [packet for packet in received if packet in OWN]
        assert len(own) in (0, 1)
        lost = 2 * len(FOREIGN) - len(kept)
        if own:
            gaps = [LOST + b"%d" % lost, *own, LOST + b"%d" % (len(OWN) - 1)]
        else:
            gaps = [LOST + b"%d" % (lost + len(OWN))]
        assert received == [*kept, *gaps]


def test_each_user_has_its_own_held_time() -> None:
    """One user uses all of its held time on itself; the other still has its own."""
    with (
        bus_for_all(2, HELD_SECONDS) as bus,
        clients_on_each(bus, 2, 3) as places,
        strangers(bus, 2) as (blocker, stranger),
    ):
        slow, publisher = places[0][0], places[1][1]
        witnesses = [own[2] for own in places]
        choose(blocker, SOFT)
        assert sync(blocker) == []
        packets = filling()
        publish_and_sync(stranger, packets)
        for packet in OWN:
            publisher.send(packet)
            publisher.whoami()
        began_at = time.monotonic()
        publish_and_sync(stranger, FOREIGN[:1])
        give_turns(witnesses)
        publish_and_sync(stranger, FOREIGN[1:])
        assert time.monotonic() - began_at > AT_LEAST
        assert held_seconds(bus) == 0
        choose(slow, SOFT)
        slow.whoami()
        publish_and_sync(stranger, packets)
        give_turns(witnesses)
        began_at = time.monotonic()
        for packet in OWN:
            publisher.send(packet)
            give_turns(witnesses)
        publisher.whoami()
        assert time.monotonic() - began_at > AT_LEAST
