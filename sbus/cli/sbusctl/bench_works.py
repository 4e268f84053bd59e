"""The works of `sbusctl bench`, and their results.

All keys begin with `sbusctl/bench/` and a random segment, so no other client receives these
messages, unless it subscribes to everything.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from sbus.cli.sbusctl.bench_load import (
    WAIT_SECONDS_MAX,
    Client,
    Connect,
    LoadPlan,
    Subscribers,
    flood,
    round_trips,
)
from sbus.client.admin import AdminConnection
from sbus.errors import BusError
from sbus.protocol.admin import Stats
from sbus.protocol.admin_results import StatsResult
from sbus.protocol.keys import Dialect

PATTERNS_PER_SYNC = 1_000


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Of round trips, in microseconds; nearest-rank percentiles."""

    p50_us: float
    p99_us: float
    max_us: float


class WorkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a work found. `seconds` is how long its messages took, all in all; `lost` is what the
    bus dropped for its subscribers. `broker_cpu_us` is the CPU time of all workers for each message
    that the bus delivered meanwhile, null without access to the admin socket."""

    work: str
    publishers: int
    subscribers: int
    subscriptions: int
    size_bytes: int
    seconds: float
    published: int
    delivered: int
    lost: int
    round_trip: Times | None = None
    broker_cpu_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The bus, as a way to connect to it, and what is asked of it."""

    connect: Connect
    dialect: Dialect
    plan: LoadPlan
    clients: int
    subscriptions: int

    def new_key(self) -> bytes:
        """One that nobody else uses, for one work."""
        return self.dialect.separator.join((b"sbusctl", b"bench", os.urandom(8).hex().encode()))


# -- one at a time ---------------------------------------------------------------------------------
def _measure_round_trips(bench: Bench, work: str, patterns: int) -> WorkResult:
    """A message is published when the one before has arrived. The subscriber has so many patterns
    besides, which do not match."""
    key = bench.new_key()
    with _ready_pair(bench, key) as (publisher, subscriber):
        _subscribe_to_others(bench, subscriber, key, patterns)
        began = time.monotonic()
        times, lost = round_trips(publisher, subscriber, key, bench.plan)
        return WorkResult(
            work=work,
            publishers=1,
            subscribers=1,
            subscriptions=patterns + 1,
            size_bytes=bench.plan.size_bytes,
            seconds=time.monotonic() - began,
            published=len(times) + lost,
            delivered=len(times),
            lost=lost,
            round_trip=times_of(times),
        )


def _subscribe_to_others(bench: Bench, subscriber: Client, key: bytes, patterns: int) -> None:
    """Raises PacketRefused at a quota."""
    for number in range(patterns):
        pattern = bench.dialect.separator.join((key, b"other", b"%d" % number))
        subscriber.subscribe(pattern, timeout_seconds=WAIT_SECONDS_MAX)
        if number % PATTERNS_PER_SYNC == 0:
            subscriber.sync(timeout_seconds=WAIT_SECONDS_MAX)
    subscriber.sync(timeout_seconds=WAIT_SECONDS_MAX)


@contextlib.contextmanager
def _ready_pair(bench: Bench, key: bytes) -> Iterator[tuple[Client, Client]]:
    """A publisher, and a subscriber to `key`; raises BusError where a message does not arrive."""
    with bench.connect() as publisher, bench.connect() as subscriber:
        subscriber.subscribe(key)
        subscriber.sync(timeout_seconds=WAIT_SECONDS_MAX)
        publisher.publish(key, bytes(bench.plan.size_bytes))
        publisher.sync(timeout_seconds=WAIT_SECONDS_MAX)
        subscriber.receive(timeout_seconds=WAIT_SECONDS_MAX)
        yield publisher, subscriber


def times_of(times: list[float]) -> Times | None:
    if not times:
        return None
    ordered = sorted(times)
    p50, p99 = (ordered[(len(ordered) * percent + 99) // 100 - 1] for percent in (50, 99))
    return Times(p50_us=p50 * 1e6, p99_us=p99 * 1e6, max_us=ordered[-1] * 1e6)


# -- as many as possible ---------------------------------------------------------------------------
def _measure_stream(bench: Bench, work: str, subscribers: int) -> WorkResult:
    """One publisher, subscribers to the same key, and a window between them."""
    key, plan = bench.new_key(), bench.plan
    payload = bytes(plan.size_bytes)
    published = 0
    with (
        bench.connect() as publisher,
        Subscribers(bench.connect, key, subscribers, plan.step) as receiving,
    ):
        began = time.monotonic()
        for number in plan.numbers():
            publisher.publish(key, payload, timeout_seconds=WAIT_SECONDS_MAX)
            published = number + 1
            if number == 0:
                publisher.sync(timeout_seconds=WAIT_SECONDS_MAX)  # is it refused?
            if published % plan.step == 0:
                receiving.wait_until(published - plan.window)
        publisher.sync(timeout_seconds=WAIT_SECONDS_MAX)
        receiving.wait_until(published)
        progress = receiving.progress
    return WorkResult(
        work=work,
        publishers=1,
        subscribers=subscribers,
        subscriptions=subscribers,
        size_bytes=plan.size_bytes,
        seconds=max(progress.at_seconds - began, 1e-9),
        published=published,
        delivered=progress.received,
        lost=progress.lost,
    )


def _measure_in_flood(bench: Bench) -> WorkResult:
    """Round trips of two clients while others publish without waiting for their subscriber."""
    key, flooded_key = bench.new_key(), bench.new_key()
    with (
        _ready_pair(bench, key) as (publisher, subscriber),
        Subscribers(bench.connect, flooded_key, 1, bench.plan.step) as receiving,
        flood(bench.connect, flooded_key, bench.plan, bench.clients) as flooding,
    ):
        flooding.report()  # all are connected
        began = time.monotonic()
        times, lost = round_trips(publisher, subscriber, key, bench.plan)
        published = flooding.report()
        assert isinstance(published, int)
        receiving.wait_until(published)
        progress = receiving.progress
    return WorkResult(
        work="flood",
        publishers=bench.clients,
        subscribers=1,
        subscriptions=1,
        size_bytes=bench.plan.size_bytes,
        seconds=max(progress.at_seconds - began, 1e-9),
        published=published,
        delivered=progress.received,
        lost=progress.lost + lost,
        round_trip=times_of(times),
    )


WORKS: dict[str, Callable[[Bench], WorkResult]] = {
    "latency": lambda bench: _measure_round_trips(bench, "latency", 0),
    "throughput": lambda bench: _measure_stream(bench, "throughput", 1),
    "fan-out": lambda bench: _measure_stream(bench, "fan-out", bench.clients),
    "subscriptions": lambda bench: _measure_round_trips(
        bench, "subscriptions", bench.subscriptions
    ),
    "flood": _measure_in_flood,
}
"""What each is, the help of `sbusctl bench` says."""


# -- the broker's CPU time -------------------------------------------------------------------------
def measure(bench: Bench, work: str, admin: AdminConnection | None) -> WorkResult:
    """Run a work, and see in the statistics of the bus what it took, if that is possible."""
    before = admin and admin.ask(Stats(), StatsResult)
    try:
        result = WORKS[work](bench)
    except TimeoutError as error:
        raise BusError(f"{work}: {error}") from None
    after = admin and admin.ask(Stats(), StatsResult)
    if not before or not after:
        return result
    return msgspec.structs.replace(result, broker_cpu_us=cpu_us_per_delivery(before, after))


def cpu_us_per_delivery(before: StatsResult, after: StatsResult) -> float | None:
    """CPU time of all workers for each message that was delivered between two answers; None if
    there was none, or if a worker did not answer or has died."""
    pids = [[worker.pid for worker in stats.workers] for stats in (before, after)]
    delivered = after.traffic.delivered - before.traffic.delivered
    if pids[0] != pids[1] or 0 in pids[0] or delivered <= 0:
        return None
    first, last = (sum(worker.cpu_seconds for worker in stats.workers) for stats in (before, after))
    return (last - first) / delivered * 1e6
