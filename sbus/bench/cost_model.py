"""A model of what a message costs, fitted to the curves, and what it says about larger machines.

    µs per delivered message  =  sum over the terms below of  cost * count / delivered messages

The counts follow from the work, except those of context switches, which the kernel counts. The
costs are not negative and minimize the squared relative errors.

What the workers cannot do at the same time is what they do while they hold the lock of the shared
memory. How long that is, is measured from outside: a thread tries to take the lock now and then,
and counts how often it is taken.
"""

import contextlib
import fcntl
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event

from sbus.bench import BenchmarkFailed
from sbus.bench.curves import (
    CURVES,
    FAN_OUT,
    WORKS,
    Bus,
    Case,
    Samples,
    measure,
    packet_bytes,
)
from sbus.bench.load import LoadSample
from sbus.bench.servers import RunSettings, Server

TERMS = {
    "message": "read from its publisher, in a batch",
    "delivery": "sent to a recipient",
    "kB": "of packets, read and sent, in batches",
    "warm kB": "the same, one message at a time, so that a packet stays in the cache",
    "entry": "walked in the ordered log by another worker",
    "walk": "a walk of the log for one message, besides its entry and its context switch",
    "switch": "a context switch on a busy CPU, with the tick that follows",
    "wake-up": "the same on an idle CPU",
    "miss": "a route looked up in the pattern index",
    "change": "a pattern subscribed to, or no longer",
}
Counts = Mapping[str, float]
"""By term, for one delivered message."""
FIT_ROUNDS = 5_000
PROBE_SECONDS = 0.0003


# -- the fit --------------------------------------------------------------------------------------
def term_counts(bus: Bus, work: str, sample: LoadSample) -> Counts:
    """What a sample counted. A wildcard change makes the one key in use a miss."""
    mode, subscribers = WORKS[work].mode, WORKS[work].subscribers
    published = sample.published / sample.received
    switches = sample.context_switches / sample.received
    changes = sample.changes / sample.received
    kilobytes = packet_bytes(bus) / 1_000 * (published + 1)
    walked = published * min(subscribers, bus.workers - 1)
    is_lone, is_paced = mode == "lockstep", mode == "paced"
    clearing = changes if b"*" in bus.changes.pattern else 0.0
    return {
        "message": published,
        "delivery": 1.0,
        "kB": 0.0 if is_lone else kilobytes,
        "warm kB": kilobytes if is_lone else 0.0,
        "entry": walked,
        "walk": walked if is_lone or is_paced else 0.0,
        "switch": 0.0 if is_paced else switches,
        "wake-up": switches if is_paced else 0.0,
        "miss": clearing if bus.route_cache else published,
        "change": changes,
    }


def fit(rows: Sequence[Counts], costs_us: Sequence[float]) -> dict[str, float]:
    """The cost of each term: least squares of the relative errors, by coordinate descent."""
    pairs = list(zip(rows, costs_us, strict=True))
    columns = {term: [row[term] / cost for row, cost in pairs] for term in TERMS}
    solution = dict.fromkeys(TERMS, 0.0)
    residuals = [1.0] * len(pairs)
    for _ in range(FIT_ROUNDS):
        for term, column in columns.items():
            square = dot(column, column)
            if square == 0:
                continue  # nothing was measured that tells
            step = max(dot(column, residuals) / square, -solution[term])
            solution[term] += step
            residuals = [left - step * x for left, x in zip(residuals, column, strict=True)]
    return solution


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(map(operator.mul, left, right))


@dataclass(frozen=True, kw_only=True)
class Model:
    """The cost of each term, and what the model says of each case."""

    costs_us: Mapping[str, float]
    cases_us: Mapping[Case, float]


def fit_model(samples: Samples) -> Model:
    """Fitted to the medians of all cases."""
    rows = {case: median_counts(case, those) for case, those in samples.items()}
    costs_us = fit(list(rows.values()), [median_us(those) for those in samples.values()])
    cases_us = {
        case: sum(costs_us[term] * row[term] for term in TERMS) for case, row in rows.items()
    }
    return Model(costs_us=costs_us, cases_us=cases_us)


def median_counts(case: Case, samples: Sequence[LoadSample]) -> Counts:
    name, value, work = case
    bus = CURVES[name].bus(value)
    each = [term_counts(bus, work, sample) for sample in samples]
    return {term: median(row[term] for row in each) for term in TERMS}


def median_us(samples: Sequence[LoadSample]) -> float:
    """The CPU time of a delivered message."""
    return median(sample.cpu_us for sample in samples)


# -- the lock -------------------------------------------------------------------------------------
@contextlib.contextmanager
def probed(path: Path, cpus: frozenset[int] | None) -> Iterator[Callable[[], float]]:
    """Try now and then whether a lock is free, until the block ends. Yields a function that returns
    how often it was not, from 0 to 1."""
    tried = taken = 0
    stopped = Event()

    def probe() -> None:
        nonlocal tried, taken
        if cpus:
            os.sched_setaffinity(0, cpus)  # of this thread only
        while not stopped.wait(PROBE_SECONDS):
            tried += 1
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                taken += 1
            else:
                fcntl.flock(fd, fcntl.LOCK_UN)

    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            probing = pool.submit(probe)
            try:
                yield lambda: taken / max(tried, 1)
            finally:
                stopped.set()
            probing.result()
    finally:
        os.close(fd)


def memory_file(server: Server) -> Path:
    """The shared memory of a bus, whose lock is the bus's."""
    for link in Path(f"/proc/{server.child.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was listed
            if str(link.readlink()).startswith("/memfd:sbus"):
                return link
    raise BenchmarkFailed("sbusd has no shared memory")


def measure_lock(run: RunSettings, workers: int, seconds: float) -> dict[str, list[float]]:
    """How long the lock is held for each published message, in µs, with all clients on one worker
    and with each on its own."""
    held: dict[str, list[float]] = {}
    places = {"together": "load", "apart": "spread"}
    for label, place, placement in run.rounds(places):
        with run.broker(workers, placement=placement)() as server:
            for work in ("round trip", "saturated", "fan-out"):
                with probed(memory_file(server), run.load_cpus) as share:
                    sample = measure(run, server, Bus(workers=workers), WORKS[work], seconds)
                    held_us = share() * sample.wall_ns / sample.published / 1_000
                held.setdefault(f"{work}, {place}", []).append(held_us)
                run.progress(f"{label} of {workers}, {work}: lock held {held_us:.3f} µs")
    return held


# -- larger machines ------------------------------------------------------------------------------
def predict(costs_us: Mapping[str, float], held_us: Mapping[str, float], cores: int) -> list[str]:
    """What so many cores with as many workers could do, and what would limit it."""
    kilobytes_us = packet_bytes(Bus()) / 1_000 * costs_us["kB"]
    publishing_us = costs_us["message"] + kilobytes_us
    delivering_us = costs_us["delivery"] + kilobytes_us
    walking_us = costs_us["entry"] + delivering_us
    lone_us = publishing_us + walking_us + costs_us["walk"] + 2 * costs_us["wake-up"]
    both, apart = "saturated, together", "saturated, apart"
    one_to_many_us = max(publishing_us, walking_us)
    return [
        prediction("pairs, saturated", cores / (publishing_us + delivering_us), held_us[both]),
        prediction("pairs apart, saturated", cores / (publishing_us + walking_us), held_us[apart]),
        prediction("pairs apart, paced", cores / lone_us, held_us["round trip, apart"]),
        prediction(f"one to {FAN_OUT}, all apart", 1 / one_to_many_us, held_us["fan-out, apart"]),
    ]


def prediction(what: str, workers: float, held_us: float) -> str:
    """One line: published messages per microsecond, as the workers and as the lock allow."""
    lock = 1 / held_us if held_us else math.inf
    limit = "lock" if lock < workers else "workers"
    return (
        f"{what:26} {min(workers, lock):6.2f} M/s: workers {workers:.2f}, lock {lock:.2f} ({limit})"
    )
