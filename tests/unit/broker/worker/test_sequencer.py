"""The sequencer: who waits for how long, who pays for what, and when the subscriptions of others
are read. The order of all messages is the subject of `tests/simulation`."""

import inspect
import time
from collections.abc import Iterator
from types import ModuleType

import msgspec
import pytest

from sbus.broker.delivery import backpressure
from sbus.broker.worker import log_walker as log_walker_module
from sbus.broker.worker import publish_batch as publish_batch_module
from sbus.broker.worker import router as router_module
from sbus.broker.worker import sequencer as sequencer_module
from sbus.broker.worker import subscriptions as subscriptions_module
from sbus.broker.worker import wait_queue as waiting
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.wait_queue import Reason, Wait
from sbus.shared import (
    accounts,
    compaction,
    held_time,
    ordered_log,
    shared_memory,
    stall_table,
    subscription_table,
)
from tests.unit.broker.worker.sequencer_bus import LIMITS, UIDS, Bus, Client
from tests.unit.shared.memories import was_woken


@pytest.fixture
def bus() -> Iterator[Bus]:
    opened = Bus(2, 2)
    yield opened
    opened.close()


def test_messages_between_clients_of_one_worker_do_not_use_the_log(bus: Bus) -> None:
    mine, other, *_ = bus.clients
    bus.subscribe(other, b"a")
    for _ in range(10):
        bus.publish(mine, [b"a"])
    assert bus.log_head() == 0
    assert len(other.received) == 10


def test_a_step_is_never_interrupted() -> None:
    """No function on the way from a run to the outboxes can wait: all of them are plain."""
    modules: list[ModuleType] = [sequencer_module, router_module, ordered_log, shared_memory]
    modules += [subscription_table, compaction, subscriptions_module, backpressure, waiting]
    modules += [accounts, held_time, stall_table]
    for module in modules:
        own = [item for item in vars(module).values() if inspect.getmodule(item) is module]
        functions = [item for item in own if inspect.isfunction(item)]
        for kind in own:
            if inspect.isclass(kind):
                functions += [item for item in vars(kind).values() if inspect.isfunction(item)]
        assert functions
        for function in functions:
            assert not inspect.iscoroutinefunction(function), function
            assert not inspect.isasyncgenfunction(function), function


# -- time ------------------------------------------------------------------------------------------
SECOND_NS = 1_000_000_000


BURST_NS = SECOND_NS // 20


class Clock:
    """What the sequencer takes for the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000 * SECOND_NS
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def offer(bus: Bus, client: Client, *keys: bytes) -> Wait | None:
    """What a batch waits for that the client sent now, or of what it has to publish still."""
    client.pending += [(b"MSG %b\0" % key, key) for key in keys]
    session, router = client.session, bus.routers[client.worker]
    batch = PublishBatch(session)
    batch.messages += [(packet, key, router.look_up(key)) for packet, key in client.pending]
    wait = bus.sequencers[client.worker].publish(batch)
    del client.pending[: len(batch.messages)]
    return wait


def test_a_user_that_publishes_too_fast_waits_on_every_worker_and_nobody_else_does(
    clock: Clock,
) -> None:
    limited = Bus(2, 2, msgspec.structs.replace(LIMITS, user_messages_per_second_max=10))
    try:
        mine = [client for client in limited.clients if client.session.account.uid == UIDS[0]]
        theirs = [client for client in limited.clients if client.session.account.uid == UIDS[1]]
        assert {client.worker for client in mine} == {0, 1}
        limited.subscribe(mine[0], b"a")
        assert offer(limited, mine[0], *[b"a"] * 30) is None
        for client in mine:
            wait = offer(limited, client, b"a", b"a")
            assert wait == Wait(Reason.RATE, clock.now_ns + 3 * SECOND_NS - BURST_NS)
            assert len(client.pending) == 2
        assert len(mine[0].received) == 30
        assert offer(limited, theirs[0], b"a") is None
        clock.now_ns += 3 * SECOND_NS - BURST_NS - 1
        assert offer(limited, mine[1]) is not None
        clock.now_ns += 1
        assert offer(limited, mine[1]) is None
        assert offer(limited, mine[0]) is not None, "the others paid again"
    finally:
        limited.close()


def test_a_publisher_is_held_for_as_long_as_its_user_has_time_and_no_longer(clock: Clock) -> None:
    timed = Bus(2, 2, msgspec.structs.replace(LIMITS, user_held_seconds_max=10.0))
    try:
        stuck, other = timed.of_worker(0)[0], timed.of_worker(0)[1]
        publisher = next(
            it
            for it in timed.of_worker(1)
            if it.session.account_place == stuck.session.account_place
        )
        for client in (stuck, other):
            timed.subscribe(client, b"a")
        timed.subscribe(other, b"b")
        timed.block(stuck)
        timed.make_background_steps(0)
        timed.stall(stuck)
        place = stuck.session.account.place
        assert offer(timed, publisher, b"b", b"a", b"b") == Wait(
            Reason.STALL, clock.now_ns + 10 * SECOND_NS, place
        )
        timed.sequencers[0].barrier()
        assert other.received == [b"MSG b\0"], "what came before is not held"
        for later_seconds in (3, 6):
            clock.now_ns += later_seconds * SECOND_NS
            wait = offer(timed, publisher)
            assert wait == Wait(Reason.STALL, 1_010 * SECOND_NS, place)
        clock.now_ns += SECOND_NS
        while publisher.pending:
            assert offer(timed, publisher) is None
        timed.sequencers[1].end_holding(place)
        timed.sequencers[0].barrier()
        assert other.received == [b"MSG b\0", b"MSG a\0", b"MSG b\0"]
        assert len(stuck.received) == 1, "its outbox decides what becomes of it"
        clock.now_ns += 40 * SECOND_NS
        assert offer(timed, publisher, b"a") is None, "within the minute there is no more time"
        clock.now_ns += 21 * SECOND_NS
        assert offer(timed, publisher, b"a") is not None
    finally:
        timed.close()


def test_nobody_is_held_for_a_client_that_has_given_up_its_pattern_meanwhile() -> None:
    """The publisher's batch has the route of before."""
    alone = Bus(1, 3)
    try:
        stuck, _, publisher = alone.clients
        assert stuck.session.account_place == publisher.session.account_place
        alone.subscribe(stuck, b"a")
        alone.block(stuck)
        alone.make_background_steps(0)
        alone.stall(stuck)
        batch = PublishBatch(publisher.session)
        batch.add(b"MSG a\0", b"a", alone.routers[0].look_up(b"a"))
        alone.unsubscribe(stuck, b"a")
        assert alone.sequencers[0].publish(batch) is None
    finally:
        alone.close()


def test_a_publisher_that_has_walked_wakes_those_that_wait_for_room(bus: Bus) -> None:
    mine, _, theirs, _ = bus.clients
    bus.subscribe(theirs, b"a")
    while offer(bus, mine, b"a") is None:
        pass
    was_woken(bus.memory, 0)
    for _ in range(2):
        assert offer(bus, theirs, b"own") is None
    assert was_woken(bus.memory, 0)


def test_a_worker_learns_what_others_subscribed_to_when_it_first_publishes(bus: Bus) -> None:
    mine, _, theirs, _ = bus.clients
    bus.subscribe(theirs, b"a")
    bus.walk_on(0)
    assert bus.routers[0].look_up(b"a").mask == 0
    bus.publish(mine, [b"a"])
    assert bus.routers[0].look_up(b"a").mask == 1 << 1
    bus.subscribe(theirs, b"b")
    bus.walk_on(0)
    assert bus.routers[0].look_up(b"b").mask == 1 << 1, "it has not followed since"
    bus.walk_on(1)
    assert len(theirs.received) == 1


def test_what_was_published_before_a_subscription_is_walked_with_routes_that_are_known(
    bus: Bus,
) -> None:
    """By a publisher, too, which reads the table first."""
    mine, _, theirs, _ = bus.clients
    bus.subscribe(theirs, b"a*")
    cache = bus.routers[1].cache
    for number in range(2):
        bus.publish(mine, [b"a"])
        bus.publish(theirs, [b"own"])
        misses, received = cache.misses, len(theirs.received)
        bus.publish(mine, [b"a"])
        bus.subscribe(mine, b"b%d*" % number)
        if number:
            bus.publish(theirs, [b"own"])
        else:
            bus.walk_on(1)
        assert len(theirs.received) == received + 1
        assert b"a" not in cache.recent, "it has read the table"
        assert cache.misses <= misses + number, "only for the message that it published itself"


@pytest.mark.usefixtures("real_time")
def test_lookups_in_a_walk_are_charged_to_the_publisher(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_walker_module, "UNITS_PER_SECOND", 10**9)
    mine, _, theirs, _ = bus.clients
    bus.subscribe(theirs, b"a/")
    costs = []
    for key in (b"a/1", b"a/1", b"a/2"):
        bus.publish(mine, [key])
        bus.walk_on(1)
        costs.append(bus.sequencers[1].take_walking_cost()[mine.session.account_place])
    assert costs[1] == 2
    assert min(costs[0], costs[2]) > 1_000, "it takes more than a microsecond"


@pytest.mark.usefixtures("real_time")
def test_what_watching_takes_is_charged_to_the_publisher(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (log_walker_module, publish_batch_module):
        monkeypatch.setattr(module, "UNITS_PER_SECOND", 10**9)
    mine, _, theirs, _ = bus.clients
    bus.subscribe(theirs, b"a")
    bus.publish(mine, [b"a"])
    bus.walk_on(1)
    bus.sequencers[1].take_walking_cost()
    for sequencer in bus.sequencers:
        sequencer._monitor.start_sampling()
    batch = PublishBatch(mine.session)
    batch.add(b"MSG b\0", b"b", bus.routers[0].look_up(b"b"))
    bus.sequencers[0].publish(batch)
    assert batch.timed_cost > 1_000, "it takes more than a microsecond"
    bus.publish(mine, [b"a"])
    bus.walk_on(1)
    assert bus.sequencers[1].take_walking_cost()[mine.session.account_place] > 1_000
