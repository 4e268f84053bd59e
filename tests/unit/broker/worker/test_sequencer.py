"""The sequencer against a bus in which every step is one instant (docs/protocol.md, "Promises", 1
to 3)."""

import inspect
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
from tests.unit.broker.worker.sequencer_model import (
    COST_OF_EVERYTHING,
    EVERYTHING_SECRET,
    LIMITS,
    Bus,
    Client,
)
from tests.unit.shared.memories import log_block_of

WORKERS = 3
CLIENTS_PER_WORKER = 2
KEYS = [b"a", b"b", b"a/b", b"c/d/e", b"!/cred//1//", b"!/cred////"]
PATTERNS = [b"a", b"b", b"a/*", b"c/", b"", b"*", b"a*b", EVERYTHING_SECRET]


class Act(msgspec.Struct, frozen=True):
    """Something that a worker or the front does; `meanwhile`: others, at releases of its lock."""

    what: str
    who: int
    keys: list[bytes]
    pattern: bytes
    meanwhile: list["Act"]


WHATS = [
    *["publish"] * 6,
    *["subscribe"] * 3,
    *["unsubscribe", "unsubscribe", "barrier", "walk_on", "walk_piece", "take_wake", "take_wake"],
    *["stall", "stall", "resume", "resume", "echo", "leave", "die"],
    *["begin_compaction", "finish_compaction"],
]
WHATS_MEANWHILE = WHATS[: WHATS.index("echo")]


def acts(whats: list[str], meanwhile: st.SearchStrategy[list[Act]]) -> st.SearchStrategy[Act]:
    return st.builds(
        Act,
        what=st.sampled_from(whats),
        who=st.integers(0, WORKERS * CLIENTS_PER_WORKER - 1),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3),
        pattern=st.sampled_from(PATTERNS),
        meanwhile=meanwhile,
    )


scripts = st.lists(
    acts(WHATS, st.lists(acts(WHATS_MEANWHILE, st.just([])), max_size=3)),
    min_size=1,
    max_size=50,
)


def nothing() -> None:
    """Nobody else acts."""


def perform(bus: Bus, act: Act, busy_worker: int | None = None) -> None:
    client = bus.clients[act.who % len(bus.clients)]
    worker = client.worker
    if worker == busy_worker:
        return
    meanwhile = others(bus, act, worker)
    if act.what == "publish":
        bus.publish(client, act.keys, meanwhile)
    elif act.what == "barrier":
        bus.barrier(worker, meanwhile)
    elif act.what == "walk_on":
        bus.walk_on(worker, meanwhile)
    elif act.what == "walk_piece":
        bus.walk_piece(worker)
    elif act.what == "take_wake":
        bus.take_wake(worker)
    elif act.what == "stall":
        if client.session.backpressure is None:
            bus.block(client)
            bus.make_background_steps(worker)
        bus.stall(client)
    elif act.what == "resume" and client.stalled:
        bus.resume(client)
    elif act.what == "leave":
        bus.leave(client)
    elif act.what == "die":
        bus.die(worker)
    elif act.what.endswith("compaction"):
        bus.compact(finish=act.what.startswith("finish"))
    elif client.held:
        return  # a client that is held back is not read
    elif act.what == "subscribe":
        assert bus.subscribe(client, act.pattern, meanwhile)
    elif act.what == "unsubscribe" and client.subscriptions:
        assert bus.unsubscribe(client, act.who, meanwhile)
    elif act.what == "echo":
        client.session.echo = not client.session.echo


def others(bus: Bus, act: Act, busy_worker: int) -> Callable[[], None]:
    waiting = iter(act.meanwhile)

    def meanwhile() -> None:
        following = next(waiting, None)
        if following is not None:
            perform(bus, following, busy_worker)

    return meanwhile


# A stalled client gives up its pattern while a publisher that was held for it tries again.
HELD_BY_AN_OLD_ROUTE = [
    Act("publish", 0, [b"a"], b"a", []),
    Act("subscribe", 0, [b"a"], b"a", []),
    Act("stall", 0, [b"a"], b"a", []),
    Act("publish", 2, [b"a"], b"a", []),
    Act("unsubscribe", 0, [b"a"], b"a", [Act("publish", 2, [b"a"], b"a", [])]),
]


@settings(max_examples=5 * settings().max_examples)
@given(scripts)
@example(HELD_BY_AN_OLD_ROUTE)
def test_every_interleaving_is_some_sequence_of_instants(script: list[Act]) -> None:
    bus = Bus(WORKERS, CLIENTS_PER_WORKER)
    try:
        with (
            patch.object(log_walker_module, "_WALK_ENTRIES_PER_LOOK", 2),
            patch.object(log_walker_module, "_WALK_SECONDS_PER_SHARE", 0.0),
            patch.object(log_walker_module, "_WALK_COST_PER_SHARE", 2),
            patch.object(subscriptions_module, "_RECORDS_PER_PIECE", 2),
        ):
            for act in script:
                perform(bus, act)
                bus.check()
            bus.settle()
    finally:
        bus.close()


@settings(max_examples=3 * settings().max_examples // 5)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(["publish"] * 5 + ["walk_on", "walk_piece", "barrier"]),
        ),
        min_size=20,
        max_size=80,
    )
)
def test_a_log_that_is_often_full_holds_back_but_loses_nothing(
    script: list[tuple[int, str]],
) -> None:
    bus = Bus(2, 2)
    try:
        for client in bus.clients:
            bus.subscribe(client, b"", nothing)
        for who, what in script:
            perform(bus, Act(what, who, [b"a", b"b", b"a/b"], b"", []))
            bus.check()
        held = {client.worker for client in bus.clients if client.waits_for_room}
        for sequencer in bus.sequencers:
            for _ in range(10):
                sequencer.walk_on(COST_OF_EVERYTHING)
            assert sequencer.is_caught_up, "it never comes to rest"
        bus.look()
        for worker in held:
            assert bus.told_of_room[worker], "held back and never woken"
        bus.settle()
    finally:
        bus.close()


@pytest.fixture
def bus() -> Iterator[Bus]:
    opened = Bus(2, 2)
    yield opened
    opened.close()


def test_messages_between_clients_of_one_worker_do_not_use_the_log(bus: Bus) -> None:
    mine, other, *_ = bus.clients
    bus.subscribe(other, b"a", nothing)
    for _ in range(10):
        bus.publish(mine, [b"a"], nothing)
    with bus.memory.lock as words:
        assert bus.logs[0].statistics(words).head == 0
    assert len(other.collector.received) == 10


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


def test_the_log_of_these_tests_is_deep_enough_for_their_runs() -> None:
    """A quarter of the log takes the largest block and the skip before it."""
    largest = log_block_of(1, 1, [(7, b"MSG !/cred//1//\0" + b"9" * 8, 11)] * 3)
    assert 8 * len(largest.data) <= LIMITS.log_bytes


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
        mine = [client for client in limited.clients if client.session.account.uid == 1]
        theirs = [client for client in limited.clients if client.session.account.uid == 2]
        assert {client.worker for client in mine} == {0, 1}
        limited.subscribe(mine[0], b"a", nothing)
        assert offer(limited, mine[0], *[b"a"] * 30) is None
        for client in mine:
            wait = offer(limited, client, b"a", b"a")
            assert wait == Wait(Reason.RATE, clock.now_ns + 3 * SECOND_NS - BURST_NS)
            assert len(client.pending) == 2
        assert len(mine[0].collector.received) == 30
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
            timed.subscribe(client, b"a", nothing)
        timed.subscribe(other, b"b", nothing)
        timed.block(stuck)
        timed.make_background_steps(0)
        timed.stall(stuck)
        place = stuck.session.account.place
        assert offer(timed, publisher, b"b", b"a", b"b") == Wait(
            Reason.STALL, clock.now_ns + 10 * SECOND_NS, place
        )
        timed.sequencers[0].barrier()
        assert other.collector.received == [b"MSG b\0"], "what came before is not held"
        for later_seconds in (3, 6):
            clock.now_ns += later_seconds * SECOND_NS
            wait = offer(timed, publisher)
            assert wait == Wait(Reason.STALL, 1_010 * SECOND_NS, place)
        clock.now_ns += SECOND_NS
        while publisher.pending:
            assert offer(timed, publisher) is None
        timed.sequencers[1].end_holding(place)
        timed.sequencers[0].barrier()
        assert other.collector.received == [b"MSG b\0", b"MSG a\0", b"MSG b\0"]
        assert len(stuck.collector.received) == 1, "its outbox decides what becomes of it"
        clock.now_ns += 40 * SECOND_NS
        assert offer(timed, publisher, b"a") is None, "within the minute there is no more time"
        clock.now_ns += 21 * SECOND_NS
        assert offer(timed, publisher, b"a") is not None
    finally:
        timed.close()


def test_a_worker_learns_what_others_subscribed_to_when_it_first_publishes(bus: Bus) -> None:
    mine, _, theirs, _ = bus.clients
    bus.subscribe(theirs, b"a", nothing)
    bus.walk_on(0, nothing)
    assert bus.routers[0].look_up(b"a").mask == 0
    bus.publish(mine, [b"a"], nothing)
    assert bus.routers[0].look_up(b"a").mask == 1 << 1
    bus.subscribe(theirs, b"b", nothing)
    bus.walk_on(0, nothing)
    assert bus.routers[0].look_up(b"b").mask == 1 << 1, "it has not followed since"
    bus.settle()
    assert len(theirs.collector.received) == 1


def test_what_was_published_before_a_subscription_is_walked_with_routes_that_are_known(
    bus: Bus,
) -> None:
    """By a publisher, too, which reads the table first."""
    mine, _, theirs, _ = bus.clients
    bus.subscribe(theirs, b"a*", nothing)
    cache = bus.routers[1].cache
    for number in range(2):
        bus.publish(mine, [b"a"], nothing)
        bus.publish(theirs, [b"own"], nothing)
        misses, received = cache.misses, len(theirs.collector.received)
        bus.publish(mine, [b"a"], nothing)
        bus.subscribe(mine, b"b%d*" % number, nothing)
        if number:
            bus.publish(theirs, [b"own"], nothing)
        else:
            bus.walk_on(1, nothing)
        assert len(theirs.collector.received) == received + 1
        assert b"a" not in cache.recent, "it has read the table"
        assert cache.misses <= misses + number, "only for the message that it published itself"


@pytest.mark.usefixtures("real_time")
def test_lookups_in_a_walk_are_charged_to_the_publisher(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_walker_module, "UNITS_PER_SECOND", 10**9)
    mine, _, theirs, _ = bus.clients
    bus.subscribe(theirs, b"a/", nothing)
    costs = []
    for key in (b"a/1", b"a/1", b"a/2"):
        bus.publish(mine, [key], nothing)
        bus.walk_on(1, nothing)
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
    bus.subscribe(theirs, b"a", nothing)
    bus.publish(mine, [b"a"], nothing)
    bus.walk_on(1, nothing)
    bus.sequencers[1].take_walking_cost()
    for sequencer in bus.sequencers:
        sequencer._monitor.start_sampling()
    batch = PublishBatch(mine.session)
    batch.add(b"MSG b\0", b"b", bus.routers[0].look_up(b"b"))
    bus.sequencers[0].publish(batch)
    assert batch.timed_cost > 1_000, "it takes more than a microsecond"
    bus.publish(mine, [b"a"], nothing)
    bus.walk_on(1, nothing)
    assert bus.sequencers[1].take_walking_cost()[mine.session.account_place] > 1_000
