"""The benchmark of latency: how long a question and its answer take through the bus.

One asks, one answers, nothing else is under way, so each packet finds everybody asleep: this is
mostly the kernel's time to wake processes. All repetitions' times of a case are pooled.
"""

import contextlib
from array import array
from collections.abc import Sequence

from sbus.bench.figures import percentile
from sbus.bench.proc import this_machine
from sbus.bench.programs import generator
from sbus.bench.report import Result
from sbus.bench.servers import Start
from sbus.bench.terms import Terms

WARM_UP_ROUNDS = 100
PHASE_SECONDS = 60.0
ROUNDS_PER_SECOND_MIN = 500
PERCENTS = (50, 99, 99.9)


def round_trip(terms: Terms, rounds: int, size_bytes: int, *, with_broker: bool = True) -> Result:
    """Relay, both clients on one worker, and on two; without the broker, the relay only."""
    cases: dict[str, tuple[Start, str]] = {"relay": (terms.relay("each"), "none")}
    if with_broker:
        cases["broker, same worker"] = (terms.broker(2), "before")
        cases["broker, across workers"] = (terms.broker(2), "after")
    samples_ns: dict[str, list[int]] = {case: [] for case in cases}
    for repetition in range(terms.repetitions):
        for case, (start, fillers) in cases.items():
            samples_ns[case] += measure(terms, start, fillers, rounds, size_bytes)
            terms.progress(f"{repetition + 1}/{terms.repetitions} {case}")
    return Result(
        name="round-trip",
        machine=this_machine(),
        settings={"rounds": rounds, "size": size_bytes, **terms.settings()},
        columns=("case", *(f"p{percent} µs" for percent in PERCENTS), "least µs", "round trips"),
        rows=[latency_row(case, those) for case, those in samples_ns.items()],
        samples=dict(samples_ns),
    )


def measure(terms: Terms, start: Start, fillers: str, rounds: int, size_bytes: int) -> list[int]:
    """Times in ns of `rounds` round trips, after a few that do not count."""
    times = terms.directory / "round-trips"
    seconds = PHASE_SECONDS + rounds / ROUNDS_PER_SECOND_MIN
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start())
        arguments = (server.address, size_bytes, times, fillers)
        load = stack.enter_context(generator("ping", arguments, terms.directory, terms.load_cpus))
        load.ask(f"go {WARM_UP_ROUNDS}", "done", PHASE_SECONDS)
        load.ask(f"go {rounds}", "done", seconds)
    samples_ns = array("Q")
    samples_ns.frombytes(times.read_bytes())
    return samples_ns.tolist()


def latency_row(case: str, samples_ns: Sequence[int]) -> tuple[str, ...]:
    """Percentiles, the least, and how many there were."""
    shown = (f"{percentile(samples_ns, percent) / 1_000:.1f}" for percent in PERCENTS)
    return (case, *shown, f"{min(samples_ns) / 1_000:.1f}", f"{len(samples_ns):,}")
