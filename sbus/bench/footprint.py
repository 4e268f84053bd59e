"""The benchmark of the footprint: what a bus takes that has nothing to do, and what is added to it.

Each sample is one bus. It is measured once it has settled: idle; with a client for each worker;
with a crowd of idle clients; and with the patterns of some more clients, all of them different.
Memory is proportional: what processes share is divided among them, so that it counts once.
"""

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import median

from sbus.bench import proc
from sbus.bench.report import Result
from sbus.bench.servers import RunSettings, Server, Start
from sbus.bench.traffic import DESCRIPTORS_FOR_FRONT_AND_WORKERS, Bystanders, allow_descriptors

PLACEMENTS = ("load", "spread")
SETTLING_SECONDS = 2.0
"""Longer than what a worker does now and then."""
SUBSCRIBERS = 10
"""Each may have a tenth of the patterns, far fewer than a client's quota."""
MB, KB = 1e6, 1e3


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """What is added to an idle bus."""

    clients: int = 1_000
    patterns: int = 20_000

    def subscribers(self, *, wildcards: bool) -> Bystanders:
        each = self.patterns // SUBSCRIBERS
        return Bystanders(clients=SUBSCRIBERS, patterns_per_client=each, wildcards=wildcards)


@dataclass(frozen=True)
class Footprint:
    """One bus. What clients and patterns add is for each of them."""

    ready_seconds: float
    """From its start until it has closed its standard output."""
    idle_bytes: float
    wake_ups_per_second: float
    """Of all of its processes, idle."""
    serving_bytes: float
    """With a client for each worker."""
    client_bytes: float
    pattern_bytes: float

    def cells(self) -> tuple[str, ...]:
        return (
            f"{self.ready_seconds * 1_000:.0f}",
            f"{self.idle_bytes / MB:.1f}",
            f"{self.wake_ups_per_second:.1f}",
            f"{self.serving_bytes / MB:.1f}",
            f"{self.client_bytes / KB:.1f}",
            f"{self.pattern_bytes / KB:.2f}",
        )


def take(run: RunSettings, crowd: Crowd, workers: int, seconds: float) -> Result:
    """Buses with few workers in use and with all, and with patterns of both kinds; medians."""
    allow_descriptors(DESCRIPTORS_FOR_FRONT_AND_WORKERS * (crowd.clients + SUBSCRIBERS + workers))
    cases = {
        f"{placement}, {kind}": (run.broker(workers, placement=placement), kind == "wildcards")
        for placement in PLACEMENTS
        for kind in ("literals", "wildcards")
    }
    with run.broker(workers)():
        pass  # the first start compiles what it imports
    samples: dict[str, list[Footprint]] = {case: [] for case in cases}
    for label, case, (start, wildcards) in run.rounds(cases):
        sample = measure(start, crowd, workers, seconds, wildcards=wildcards)
        samples[case].append(sample)
        run.progress(f"{label}: {' '.join(sample.cells())}")
    return Result(
        name="footprint",
        settings={
            "workers": workers,
            "clients": crowd.clients,
            "patterns": crowd.patterns,
            "seconds": seconds,
            "repetitions": run.repetitions,
        },
        columns=(
            "case",
            "ready ms",
            "idle MB",
            "wake-ups/s",
            "serving MB",
            "kB/client",
            "kB/patt.",
        ),
        rows=[(case, *median_of(those).cells()) for case, those in samples.items()],
        samples=samples,
    )


def median_of(samples: Sequence[Footprint]) -> Footprint:
    """A bus that is the median of these in every respect."""
    return Footprint(*map(median, zip(*map(astuple, samples), strict=True)))


def measure(
    start: Start, crowd: Crowd, workers: int, seconds: float, *, wildcards: bool
) -> Footprint:
    """Start a bus, and measure it with one thing after the other."""
    subscribers = crowd.subscribers(wildcards=wildcards)
    began_at = time.monotonic()
    with start() as server:
        ready_seconds = time.monotonic() - began_at
        idle_bytes = settled_bytes(server)
        wake_ups_per_second = wake_ups(server, seconds)
        with Bystanders(clients=workers).connected(server.address):
            serving_bytes = settled_bytes(server)
            with Bystanders(clients=crowd.clients).connected(server.address):
                crowded_bytes = settled_bytes(server)
                with subscribers.connected(server.address):
                    subscribed_bytes = settled_bytes(server)
    client_bytes = (crowded_bytes - serving_bytes) / crowd.clients
    added_bytes = subscribed_bytes - crowded_bytes - SUBSCRIBERS * client_bytes
    return Footprint(
        ready_seconds=ready_seconds,
        idle_bytes=idle_bytes,
        wake_ups_per_second=wake_ups_per_second,
        serving_bytes=serving_bytes,
        client_bytes=client_bytes,
        pattern_bytes=added_bytes / (SUBSCRIBERS * subscribers.patterns_per_client),
    )


def settled_bytes(server: Server) -> int:
    """Memory of all of its processes, after a while."""
    time.sleep(SETTLING_SECONDS)
    return sum(map(proc.proportional_memory_bytes, server.pids()))


def wake_ups(server: Server, seconds: float) -> float:
    """How often in a second a process of its was given a CPU."""
    pids = server.pids()
    before = sum(map(proc.context_switches, pids))
    began_at = time.monotonic()
    time.sleep(seconds)
    after = sum(map(proc.context_switches, pids))
    return (after - before) / (time.monotonic() - began_at)
