"""The benchmark of a flood: what one user's 200 publishing connections do to another's round trips.

Two users, one bus. A's connections belong to one process on a CPU of its own; B asks and answers,
on another CPU. On one and the same bus B is measured quiet (A is connected and silent), while A
publishes what nobody subscribes to, and while A publishes what connections of its own receive; then
on the next bus, and all of it again. The relay, which takes whoever is ready, shows what the same
load does where nobody takes turns.

This module does not know how turns are taken.
"""

import contextlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sbus.bench.failures import BenchmarkFailed
from sbus.bench.figures import format_cpus, median, percentile
from sbus.bench.proc import this_machine
from sbus.bench.programs import Child, generator
from sbus.bench.report import Result
from sbus.bench.servers import Start
from sbus.bench.terms import Terms

FLOODING_UID, VICTIM_UID = 65_531, 65_532
"""Two users that no host has; they need no names."""
WARM_UP_ROUNDS = 100
PHASE_SECONDS = 60.0
PERCENTS = (50, 99, 99.9)
FLOODS = ("unheard", "heard")


@dataclass(frozen=True, kw_only=True)
class Flood:
    """A's connections, of which `listeners` receive what the others publish, if it is `heard`."""

    connections: int = 200
    listeners: int = 10
    size_bytes: int = 110
    seconds: float = 3.0
    """How long B's round trips are measured, each time."""


@dataclass(frozen=True)
class Visit:
    """B's round trips in one measurement, and what A did meanwhile."""

    times_ns: list[int]
    flooded_ns: int = 0
    sent: int = 0
    received: int = 0

    def percentile_us(self, percent: float) -> float:
        return percentile(self.times_ns, percent) / 1_000

    @property
    def sent_per_second(self) -> float:
        """A's messages that the server took; 0 when A was silent."""
        return self.sent * 1e9 / self.flooded_ns if self.flooded_ns else 0.0


def flood(
    terms: Terms, shape: Flood, victim_cpus: frozenset[int] | None, workers: int = 2
) -> Result:
    """B quiet and flooded, through the relays and through a broker with so many workers."""
    if os.geteuid() != 0:
        raise BenchmarkFailed("A and B are other users, which takes root")
    servers: dict[str, tuple[Start, str]] = {
        "relay": (terms.relay("each"), "none"),
        "relay-drain": (terms.relay("drain"), "none"),
    }
    if workers == 2:
        servers["broker, together"] = (terms.broker(workers), "before")
        servers["broker, apart"] = (terms.broker(workers), "after")
    else:
        servers["broker"] = (terms.broker(workers), "none")
    visits: dict[str, list[Visit]] = {}
    for repetition in range(terms.repetitions):
        for server, (start, fillers) in servers.items():
            for state, visit in measure(terms, start, fillers, shape, victim_cpus):
                visits.setdefault(f"{server}, {state}", []).append(visit)
                terms.progress(
                    f"{repetition + 1}/{terms.repetitions} {server}, {state}: "
                    f"p99 {visit.percentile_us(99):.0f} µs, A {visit.sent_per_second:,.0f}/s"
                )
    rounds = sum(len(visit.times_ns) for those in visits.values() for visit in those)
    return Result(
        name="flood",
        machine=this_machine(),
        settings={
            "workers": workers,
            **{name: str(value) for name, value in asdict(shape).items()},
            "limits": " ".join(terms.limits) or "default",
            "repetitions": terms.repetitions,
            "broker_cpu": format_cpus(terms.broker_cpus),
            "flood_cpu": format_cpus(terms.load_cpus),
            "victim_cpu": format_cpus(victim_cpus),
        },
        columns=("B", *(f"p{percent} µs" for percent in PERCENTS), "p99 +µs", "A msg/s"),
        rows=rows(visits),
        notes=[f"Every one of B's {rounds:,} questions was answered, each answer as it was sent."],
        samples={case: [asdict(visit) for visit in those] for case, those in visits.items()},
    )


def measure(
    terms: Terms,
    start: Start,
    fillers: str,
    shape: Flood,
    victim_cpus: frozenset[int] | None,
) -> Iterator[tuple[str, Visit]]:
    """B's round trips on one bus: `quiet`, and in each of A's floods."""
    directory = terms.directory
    times = directory / "round-trips"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start())
        let_in(directory, Path(server.address), times)
        flooding = (server.address, shape.connections, shape.listeners, shape.size_bytes)
        asking = (server.address, shape.size_bytes, times, fillers)
        horde, ping = (
            stack.enter_context(generator(name, arguments, directory, cpus, uid))
            for name, arguments, cpus, uid in (
                ("horde", flooding, terms.load_cpus, FLOODING_UID),
                ("ping", asking, victim_cpus, VICTIM_UID),
            )
        )
        ping.ask(f"go {WARM_UP_ROUNDS}", "done", PHASE_SECONDS)
        yield "quiet", Visit(round_trips(ping, times, shape.seconds))
        for what in FLOODS:
            horde.ask(what, "flooding", PHASE_SECONDS)
            times_ns = round_trips(ping, times, shape.seconds)
            done = horde.ask("stop", "stopped", PHASE_SECONDS)
            yield what, Visit(times_ns, done["wall_ns"], done["sent"], done["received"])


def let_in(directory: Path, socket: Path, times: Path) -> None:
    """Let both users in, and B write its times."""
    directory.chmod(0o711)
    socket.chmod(0o666)
    times.touch()
    os.chown(times, VICTIM_UID, VICTIM_UID)


def round_trips(ping: Child, times: Path, seconds: float) -> list[int]:
    """Times in ns; raises BenchmarkFailed when an answer is missing or altered."""
    ping.ask(f"for {seconds * 1_000:.0f}", "done", PHASE_SECONDS + seconds)
    samples_ns = array("Q")
    samples_ns.frombytes(times.read_bytes())
    return samples_ns.tolist()


def rows(visits: Mapping[str, Sequence[Visit]]) -> list[tuple[str, ...]]:
    """Medians over the repetitions; a flooded p99 also less the quiet one of the same bus."""
    table = []
    for case, those in visits.items():
        server, _, state = case.rpartition(", ")
        quiet = visits[f"{server}, quiet"]
        more = [
            visit.percentile_us(99) - base.percentile_us(99)
            for visit, base in zip(those, quiet, strict=True)
        ]
        table.append(
            (
                case,
                *(f"{median([v.percentile_us(p) for v in those]):,.0f}" for p in PERCENTS),
                "" if state == "quiet" else f"{median(more):+,.0f}",
                "" if state == "quiet" else f"{median([v.sent_per_second for v in those]):,.0f}",
            )
        )
    return table
