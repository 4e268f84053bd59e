"""The time for which `block` holds publishers back is bounded for each user, whatever it does.

It is the time in which at least one publisher is held, over all clients and connections of the user
(PROTOCOL, "A slow client"). When it is used up, `block` acts as `discard`: publishers continue, and
messages that do not fit are counted. The tests assert a lower bound of held times, because the
protocol promises that nothing is lost before, and an upper bound with some seconds to spare. Unit
tests with a clock of their own show that the time comes back after a minute.
"""

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from tests.support.admin import held_seconds
from tests.support.bus import Bus, running_bus
from tests.support.flood import (
    LOST,
    ask,
    await_answer,
    filling,
    give_turns,
    limit_options,
    message,
)
from tests.support.processes import clients_on_each, several_clients
from tests.support.raw_client import TIMEOUT_S, RawClient
from tests.support.six_messages import BACKLOG_MESSAGES, SIX, A, Flood, in_order

SOFT = (b"blocking/soft/block",)
HARD = (b"blocking/hard/block",)
ORDERS = ("queue", "stack", "random")
BLOCKING = [
    *product(("block",), ("discard", "block", "error"), ORDERS),
    *product(("queue",), ("block",), ORDERS),
]
HELD_SECONDS = 0.6
AT_LEAST = 0.9 * HELD_SECONDS
"""Of elapsed time; how much longer it takes is up to the machine. The bus counts held time."""
MANY = 100


@contextmanager
def bus_with_budget(directory: Path, workers: int) -> Iterator[Bus]:
    limits = limit_options(
        backlog_messages_max=BACKLOG_MESSAGES, user_held_seconds_max=HELD_SECONDS
    )
    with running_bus(directory, *limits, workers=workers) as bus:
        yield bus


def stall(
    slow: RawClient,
    publisher: RawClient,
    witnesses: Sequence[RawClient],
    choices: tuple[bytes, ...] = SOFT,
    key: bytes = b"k",
) -> int:
    """Let a client block, and fill its socket; how many messages that takes."""
    for choice in (b"!/notices/on", *choices):
        slow.control(choice)
    slow.sub(key)
    slow.whoami()
    packets = filling(key)
    for packet in packets:
        publisher.send(packet)
    publisher.whoami()
    give_turns(witnesses)
    return len(packets)


def publish_one_by_one(
    publisher: RawClient, witnesses: Sequence[RawClient], key: bytes = b"k", many: int = 10
) -> list[bytes]:
    packets = [message(b"%d" % number, 100, key) for number in range(many)]
    for packet in packets:
        publisher.send(packet)
        give_turns(witnesses)
    return packets


def assert_nothing_is_left(bus: Bus, publisher: RawClient) -> None:
    """Messages that do not fit hold up their publisher no more."""
    spent = held_seconds(bus)
    assert spent >= HELD_SECONDS
    for number in range(MANY):
        publisher.send(message(b"later %d" % number, 100))
        publisher.whoami()
    assert held_seconds(bus) == spent


@pytest.mark.parametrize("choices", [SOFT, HARD], ids=["soft", "hard"])
@pytest.mark.parametrize("workers", [1, 2])
def test_when_the_time_is_used_up_publishers_continue_and_losses_are_reported(
    tmp_path: Path, workers: int, choices: tuple[bytes, ...]
) -> None:
    """On all workers, and for all who would block from then on."""
    with (
        bus_with_budget(tmp_path, workers) as bus,
        clients_on_each(bus, workers, 4) as places,
    ):
        slow, publisher, also_slow = places[0][0], places[-1][1], places[-1][2]
        witnesses = [own[3] for own in places]
        filled = stall(slow, publisher, witnesses, choices)
        began_at = time.monotonic()
        packets = publish_one_by_one(publisher, witnesses)
        publisher.whoami()
        assert time.monotonic() - began_at > AT_LEAST
        assert_nothing_is_left(bus, publisher)
        give_turns(witnesses)
        received = slow.sync()[filled:]
        kept = len(received) - 1
        assert kept in ((0, 1) if choices is SOFT else (BACKLOG_MESSAGES, BACKLOG_MESSAGES + 1))
        assert received == [*packets[:kept], LOST + b"%d" % (len(packets) + MANY - kept)]
        also_filled = stall(also_slow, places[0][1], witnesses)
        assert_nothing_is_left(bus, places[0][1])
        give_turns(witnesses)
        assert also_slow.sync()[also_filled:] == [LOST + b"%d" % MANY]


def test_clients_of_all_choices_hold_a_publisher_for_no_longer_than_one(tmp_path: Path) -> None:
    """And then each keeps, in its order, what it has room for."""
    with (
        bus_with_budget(tmp_path, 2) as bus,
        several_clients(bus, len(BLOCKING) + 3) as (publisher, *clients),
    ):
        slow, others = clients[: len(BLOCKING)], clients[len(BLOCKING) :]
        runs = [Flood(client, publisher, *others) for client in slow]
        for run, (soft, hard, order) in zip(runs, BLOCKING, strict=True):
            for choice in (f"blocking/soft/{soft}", f"blocking/hard/{hard}", f"order/{order}"):
                run.slow.control(choice.encode())
            run.slow.control(b"!/notices/on")
            run.slow.sub(b"k")
            run.slow.whoami()
        runs[0].publish(*runs[0].filling)
        give_turns(others)
        began_at = time.monotonic()
        runs[0].publish_one_by_one(*SIX)
        publisher.whoami()
        assert time.monotonic() - began_at > AT_LEAST
        spent = held_seconds(bus)
        assert spent >= HELD_SECONDS
        give_turns(others)
        for run, (soft, _, order) in zip(runs, BLOCKING, strict=True):
            fits = (0, 1) if soft == "block" else (BACKLOG_MESSAGES,)
            assert run.read() in [in_order(order, kept) for kept in fits]
        publisher.send(A)
        publisher.whoami()
        for client in slow:
            assert client.sync() == [A]
        assert held_seconds(bus) == spent


def test_blocking_several_publishers_at_once_counts_once(tmp_path: Path) -> None:
    """A client and a publisher on each of three workers: nobody goes on sooner than one would."""
    with bus_with_budget(tmp_path, 3) as bus, clients_on_each(bus, 3, 3) as places:
        witnesses = [own[2] for own in places]
        for number, (slow, publisher, _) in enumerate(places):
            stall(slow, publisher, witnesses, key=b"%d" % number)
        began_at = time.monotonic()
        for number, (_, publisher, _) in enumerate(places):
            publish_one_by_one(publisher, witnesses, b"%d" % number, 3)
            ask(publisher)
        for _, publisher, _ in places:
            await_answer(publisher)
            assert time.monotonic() - began_at > AT_LEAST
        assert held_seconds(bus) >= HELD_SECONDS


def test_the_time_runs_while_any_publisher_is_held(tmp_path: Path) -> None:
    """On one worker somebody is held all the time, on the other one for moments."""
    with bus_with_budget(tmp_path, 2) as bus, clients_on_each(bus, 2, 3) as places:
        witnesses = [own[2] for own in places]
        (slow, publisher, _), (quick, other_publisher, _) = places
        stall(slow, publisher, witnesses, key=b"slow")
        began_at = time.monotonic()
        publish_one_by_one(publisher, witnesses, b"slow", 3)
        ask(publisher)
        while not select.select([publisher], [], [], 0.01)[0]:
            assert time.monotonic() - began_at < TIMEOUT_S, "held for ever"
            stall(quick, other_publisher, witnesses, key=b"quick")
            publish_one_by_one(other_publisher, witnesses, b"quick", 3)
            quick.sync()
            other_publisher.whoami()
            quick.sync()
        assert time.monotonic() - began_at > AT_LEAST
        assert held_seconds(bus) >= HELD_SECONDS


@pytest.mark.parametrize("choices", [SOFT, HARD], ids=["soft", "hard"])
def test_a_client_cannot_hold_itself_back_for_longer(
    tmp_path: Path, choices: tuple[bytes, ...]
) -> None:
    with bus_with_budget(tmp_path, 2) as bus, clients_on_each(bus, 2) as ((itself,), (other,)):
        for choice in (b"!/notices/on", *choices):
            itself.control(choice)
        itself.sub(b"k")
        itself.whoami()
        other.sub(b"done")
        other.whoami()
        packets = [message(b"%d" % number, 100) for number in range(300)]
        began_at = time.monotonic()
        for packet in packets:
            itself.send(packet)
        itself.pub(b"done", b"")
        assert other.receive() == b"MSG done\0"
        assert time.monotonic() - began_at > AT_LEAST
        assert held_seconds(bus) >= HELD_SECONDS
        *received, gap = itself.sync()
        assert received == packets[: len(received)]
        assert gap == LOST + b"%d" % (len(packets) - len(received))
        assert len(received) >= len(filling(size=100))


def test_short_times_on_new_connections_add_up(tmp_path: Path) -> None:
    """A user that comes, blocks for a moment, and goes, over and over."""
    moment_seconds = 0.05
    with bus_with_budget(tmp_path, 2) as bus, clients_on_each(bus, 2, 2) as places:
        publisher = places[1][0]
        witnesses = [own[1] for own in places]
        elapsed_seconds = 0.0
        for _ in range(20):
            with bus.connect() as blocker:
                stall(blocker, publisher, witnesses)
                began_at = time.monotonic()
                publish_one_by_one(publisher, witnesses, many=2)
                ask(publisher)
                select.select([publisher], [], [], moment_seconds)
            await_answer(publisher)
            elapsed_seconds += time.monotonic() - began_at
        assert elapsed_seconds > AT_LEAST
        spent = held_seconds(bus)
        assert spent >= HELD_SECONDS
        for _ in range(10):
            with bus.connect() as blocker:
                stall(blocker, publisher, witnesses)
                publish_one_by_one(publisher, witnesses, many=2)
                publisher.whoami()
        assert held_seconds(bus) == spent
