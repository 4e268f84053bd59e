"""The benchmark of curves: what a message costs against workers, clients, subscriptions, message
size and subscription changes.

Each point of a curve is a bus of its own, on which the works of the curve run one after the other.
A round is each point once. The load is that of the comparison with other brokers.
"""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event

from sbus.bench import BenchmarkFailed, load
from sbus.bench.load import LoadSample, Work
from sbus.bench.servers import RunSettings, Server
from sbus.bench.traffic import (
    REPLY_BYTES_MAX,
    REPLY_SECONDS_MAX,
    Bystanders,
    allow_descriptors,
)
from sbus.limits import Limits

PAYLOAD_BYTES = 94
PACED_PER_SECOND = 5_000
WINDOW_MESSAGES = 256
FAN_OUT = 16
WHOAMI = b"CMSG !/cred/whoami"
SUBSCRIBING_CLIENTS = 40
NO_QUOTAS = (
    "user_connections_max=1000000",
    "user_subscriptions_max=1000000",
    "user_subscription_bytes_max=1000000000",
    "bus_subscription_bytes_max=1000000000",
    "table_bytes=268435456",
)
"""One user has all clients and patterns of a curve."""

WORKS = {
    "round trip": Work(title="round trip", mode="lockstep", shares_cpu=True),
    "paced": Work(title="paced", mode="paced", argument=PACED_PER_SECOND),
    "saturated": Work(title="saturated", mode="window", argument=WINDOW_MESSAGES),
    "fan-out": Work(title="fan-out", subscribers=FAN_OUT, mode="window", argument=WINDOW_MESSAGES),
}


# -- subscription changes -------------------------------------------------------------------------
@dataclass(frozen=True)
class Changes:
    """A client that subscribes to a pattern and unsubscribes in turn; no message matches it."""

    per_second: int = 0
    pattern: bytes = b""

    @contextlib.contextmanager
    def going_on(self, address: str, cpus: frozenset[int] | None) -> Iterator[None]:
        """Make changes until the block ends."""
        if not self.per_second:
            yield
            return
        stopped = Event()

        def change() -> None:
            if cpus:
                os.sched_setaffinity(0, cpus)  # of this thread only
            due = time.monotonic()
            for word in itertools.cycle((b"SUB ", b"UNSUB ")):
                if stopped.wait(max(0.0, due - time.monotonic())):
                    return
                client.send(word + self.pattern)
                due += 1 / self.per_second

        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client,
            ThreadPoolExecutor(max_workers=1) as pool,
        ):
            client.connect(address)
            changing = pool.submit(change)
            try:
                yield
            finally:
                stopped.set()
            changing.result()
            client.settimeout(REPLY_SECONDS_MAX)
            client.send(WHOAMI)
            reply = client.recv(REPLY_BYTES_MAX)
            if not reply.startswith(WHOAMI):
                raise BenchmarkFailed(f"a subscription change was answered: {reply!r}")


# -- curves ---------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Bus:
    """One point of a curve: a bus, and who uses it besides the measured clients."""

    workers: int = 1
    payload_bytes: int = PAYLOAD_BYTES
    bystanders: Bystanders = field(default_factory=lambda: Bystanders(clients=0))
    changes: Changes = field(default_factory=Changes)
    route_cache: bool = True

    @property
    def limits(self) -> tuple[str, ...]:
        return NO_QUOTAS if self.route_cache else (*NO_QUOTAS, "route_cache_bytes_max=0")


@dataclass(frozen=True)
class Curve:
    """Values of a parameter, and the bus of each."""

    values: Sequence[int]
    bus: Callable[[int], Bus]
    works: Sequence[str] = ("round trip", "saturated")


def wildcards(patterns: int) -> Bystanders:
    each = -(-patterns // SUBSCRIBING_CLIENTS)
    return Bystanders(clients=SUBSCRIBING_CLIENTS, patterns_per_client=each, wildcards=True)


SUBSCRIPTIONS = (100, 1_000, 10_000, 50_000, 200_000)
CHANGES = (0, 10, 100, 1_000)
CURVES = {
    "workers": Curve((1, 2, 4, 8, 16), lambda n: Bus(workers=n), tuple(WORKS)),
    "clients": Curve((10, 100, 1_000, 10_000), lambda n: Bus(bystanders=Bystanders(clients=n))),
    "subscriptions": Curve(SUBSCRIPTIONS, lambda n: Bus(bystanders=wildcards(n))),
    "misses": Curve(
        SUBSCRIPTIONS,
        lambda n: Bus(bystanders=wildcards(n), route_cache=False),
        ("saturated",),
    ),
    "size": Curve((16, 256, 4_096, 65_536, 400_000), lambda n: Bus(payload_bytes=n)),
    "literal-changes": Curve(
        CHANGES, lambda n: Bus(changes=Changes(n, b"bench/changed")), ("paced",)
    ),
    "wildcard-changes": Curve(
        CHANGES, lambda n: Bus(changes=Changes(n, b"bench/*/changed")), ("paced",)
    ),
}


# -- measuring ------------------------------------------------------------------------------------
Case = tuple[str, int, str]
"""A curve, a value of its parameter, and a work."""


def measure_curves(
    run: RunSettings, curves: Mapping[str, Curve], seconds: float
) -> dict[Case, list[LoadSample]]:
    """Every work at every point, as often as the settings say."""
    buses = {(name, n): curve.bus(n) for name, curve in curves.items() for n in curve.values}
    most_clients = max(bus.bystanders.clients for bus in buses.values())
    allow_descriptors(most_clients + most_clients // 2)  # a worker keeps a quarter in reserve
    points = {f"{name} {n:,}": (name, n) for name, n in buses}
    samples: dict[Case, list[LoadSample]] = {}
    for label, _, (name, value) in run.rounds(points):
        for work, sample in measure_point(run, buses[name, value], curves[name].works, seconds):
            samples.setdefault((name, value, work), []).append(sample)
            run.progress(f"{label}, {work}: {sample.cpu_us:.2f} µs")
    return samples


def measure_point(
    run: RunSettings, bus: Bus, works: Sequence[str], seconds: float
) -> Iterator[tuple[str, LoadSample]]:
    """Every work on one bus, whose clients are spread over its workers."""
    with (
        run.broker(bus.workers, *bus.limits)() as server,
        bus.bystanders.connected(server.address),
        bus.changes.going_on(server.address, run.load_cpus),
    ):
        for work in works:
            yield work, measure(run, server, bus, WORKS[work], seconds)


def measure(
    run: RunSettings,
    server: Server,
    bus: Bus,
    work: Work,
    seconds: float,
) -> LoadSample:
    """One work, its window small enough for the backlog of a subscriber."""
    if work.mode == "window":
        fitting = Limits().backlog_bytes_max // 2 // bus.payload_bytes
        work = replace(work, argument=min(work.argument, fitting))
    return load.measure(run, server, "sbus", work, bus.payload_bytes, seconds)
