"""The benchmarks of latency: how long a question and its answer take through the bus.

`round-trip`: one client asks, one answers, and nothing else is under way. Each packet finds every
process asleep, so this is mostly the time that the kernel takes to wake processes.

`flood`: two users on one bus. The connections of user A belong to one process on a CPU of its own.
User B asks and answers, on another CPU. On one and the same bus B is measured while A is connected
and silent, while A publishes what nobody subscribes to, and while A publishes what its own
connections receive. The relay, which serves every ready connection at once, shows what the same
load does where nobody takes turns. Brokers of several source trees are measured in turn.
"""

import contextlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from sbus.bench import BenchmarkFailed
from sbus.bench.figures import format_cpus, pairwise_ratios, percentile
from sbus.bench.programs import Child, generator
from sbus.bench.report import Result
from sbus.bench.servers import RunSettings, Start
from sbus.bench.traffic import NO_BYSTANDERS, Bystanders, allow_bystanders

WARM_UP_ROUNDS = 100
PHASE_SECONDS = 60.0
ROUNDS_PER_SECOND_MIN = 500
PERCENTS = (50, 99, 99.9)
PERCENT_COLUMNS = tuple(f"p{percent} µs" for percent in PERCENTS)
FLOODING_UID, VICTIM_UID = 65_531, 65_532
"""Two users that no host has; they need no names."""
RELAYS = {"relay": "each", "relay-drain": "drain"}
BROKER, OTHER_BROKER = "broker", "other"
"""The sbusd of this source tree, and of another one that it is compared with."""
FLOODS = ("unheard", "heard")
FLOOD_PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}


# -- round trips --------------------------------------------------------------------------------
@dataclass(frozen=True)
class RoundTripCase:
    """A server, where idle connections go (see client.h), and who else is connected."""

    start: Start
    fillers: str = "none"
    bystanders: Bystanders = NO_BYSTANDERS


def round_trip(
    run: RunSettings, rounds: int, size_bytes: int, crowds: Mapping[str, Bystanders]
) -> Result:
    """The relay; a broker with both clients on one worker and on two; and a broker with eight
    workers, alone and with each of the crowds. Times are pooled."""
    allow_bystanders(crowds.values())
    eight = run.broker(8, placement="load")
    cases = {
        "relay": RoundTripCase(run.relay("each")),
        "broker, same worker": RoundTripCase(run.broker(2), "before"),
        "broker, across workers": RoundTripCase(run.broker(2), "after"),
        "broker, 8 workers": RoundTripCase(eight),
    }
    for crowd, bystanders in crowds.items():
        cases[f"broker, 8, {crowd}"] = RoundTripCase(eight, bystanders=bystanders)
    samples_ns: dict[str, list[int]] = {name: [] for name in cases}
    for label, name, case in run.rounds(cases):
        samples_ns[name] += measure_round_trips(run, case, rounds, size_bytes)
        run.progress(label)
    return Result(
        name="round-trip",
        settings={"rounds": rounds, "size": size_bytes, **run.shown()},
        columns=("case", *PERCENT_COLUMNS, "least µs", "round trips"),
        rows=[latency_row(case, times) for case, times in samples_ns.items()],
        samples=samples_ns,
    )


def measure_round_trips(
    run: RunSettings, case: RoundTripCase, rounds: int, size_bytes: int
) -> list[int]:
    """Times in ns of `rounds` round trips, after a few that do not count."""
    times = run.directory / "round-trips"
    with (
        case.start() as server,
        case.bystanders.connected(server.address),
        run.load("ping", server.address, size_bytes, times, case.fillers) as ping,
    ):
        ping.ask(f"go {WARM_UP_ROUNDS}", "done", PHASE_SECONDS)
        ping.ask(f"go {rounds}", "done", PHASE_SECONDS + rounds / ROUNDS_PER_SECOND_MIN)
    return read_times_ns(times)


def read_times_ns(path: Path) -> list[int]:
    """What the C program `ping` wrote."""
    times_ns = array("Q")
    times_ns.frombytes(path.read_bytes())
    return times_ns.tolist()


def latency_row(case: str, samples_ns: Sequence[int]) -> tuple[str, ...]:
    """Percentiles, the least, and how many there were."""
    shown = (f"{percentile(samples_ns, percent) / 1_000:.1f}" for percent in PERCENTS)
    return (case, *shown, f"{min(samples_ns) / 1_000:.1f}", f"{len(samples_ns):,}")


# -- a flood ------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Flood:
    """A's connections; if it is `heard`, `listeners` of them receive what the others publish."""

    connections: int = 200
    listeners: int = 10
    size_bytes: int = 110
    seconds: float = 3.0
    """How long B's round trips are measured, each time."""


@dataclass(frozen=True)
class FloodSample:
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


FloodSamples = Mapping[str, Sequence[FloodSample]]


def flooded_relays(run: RunSettings) -> dict[str, tuple[Start, str]]:
    """Both relays, and where idle connections go: nowhere."""
    return {name: (run.relay(mode), "none") for name, mode in RELAYS.items()}


def flooded_brokers(
    run: RunSettings, name: str, workers: Sequence[int]
) -> dict[str, tuple[Start, str]]:
    """A broker with each of these numbers of workers; with two, B is on one of them and on both."""
    cases: dict[str, tuple[Start, str]] = {}
    for count in workers:
        if count == 2:
            cases[f"{name}, 2 together"] = (run.broker(2), "before")
            cases[f"{name}, 2 apart"] = (run.broker(2), "after")
        else:
            cases[f"{name}, {count}"] = (run.broker(count), "none")
    return cases


def flood(
    run: RunSettings,
    shape: Flood,
    victim_cpus: frozenset[int] | None,
    servers: Mapping[str, tuple[Start, str]],
) -> Result:
    """B quiet and flooded, through each of these servers; the second one of each is where idle
    connections go."""
    if os.geteuid() != 0:
        raise BenchmarkFailed("A and B are other users, which takes root")
    samples: dict[str, list[FloodSample]] = {}
    for label, server, (start, fillers) in run.rounds(servers):
        for state, sample in measure_flood(run, start, fillers, shape, victim_cpus):
            samples.setdefault(f"{server}, {state}", []).append(sample)
            run.progress(
                f"{label}, {state}: p99 {sample.percentile_us(99):.0f} µs, "
                f"A {sample.sent_per_second:,.0f}/s"
            )
    rounds = sum(len(sample.times_ns) for those in samples.values() for sample in those)
    return Result(
        name="flood",
        settings={
            **{name: str(value) for name, value in asdict(shape).items()},
            "limits": " ".join(run.limits) or "default",
            "repetitions": run.repetitions,
            "broker_cpu": format_cpus(run.broker_cpus),
            "flood_cpu": format_cpus(run.load_cpus),
            "victim_cpu": format_cpus(victim_cpus),
        },
        columns=("B, µs", *FLOOD_PERCENTS, "p99 more", "A msg/s"),
        rows=[flood_row(case, samples) for case in samples],
        notes=[
            f"Every one of B's {rounds:,} questions was answered, each answer as it was sent.",
            *comparisons(samples),
        ],
        samples=samples,
    )


def measure_flood(
    run: RunSettings,
    start: Start,
    fillers: str,
    shape: Flood,
    victim_cpus: frozenset[int] | None,
) -> Iterator[tuple[str, FloodSample]]:
    """B's round trips on one bus: `quiet`, and in each of A's floods."""
    times = run.directory / "round-trips"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start())
        admit_users(run.directory, Path(server.address), times)
        flooding = (server.address, shape.connections, shape.listeners, shape.size_bytes)
        asking = (server.address, shape.size_bytes, times, fillers)
        horde, ping = (
            stack.enter_context(generator(name, arguments, run.directory, cpus, uid))
            for name, arguments, cpus, uid in (
                ("horde", flooding, run.load_cpus, FLOODING_UID),
                ("ping", asking, victim_cpus, VICTIM_UID),
            )
        )
        ping.ask(f"go {WARM_UP_ROUNDS}", "done", PHASE_SECONDS)
        yield "quiet", FloodSample(ask_for(ping, times, shape.seconds))
        for what in FLOODS:
            horde.ask(what, "flooding", PHASE_SECONDS)
            times_ns = ask_for(ping, times, shape.seconds)
            done = horde.ask("stop", "stopped", PHASE_SECONDS)
            yield what, FloodSample(times_ns, done["wall_ns"], done["sent"], done["received"])


def admit_users(directory: Path, socket: Path, times: Path) -> None:
    """Let both users connect, and B write its times."""
    directory.chmod(0o711)
    socket.chmod(0o666)
    times.touch()
    os.chown(times, VICTIM_UID, VICTIM_UID)


def ask_for(ping: Child, times: Path, seconds: float) -> list[int]:
    """Times in ns; raises BenchmarkFailed when an answer is missing or altered."""
    ping.ask(f"for {seconds * 1_000:.0f}", "done", PHASE_SECONDS + seconds)
    return read_times_ns(times)


def flood_row(case: str, samples: FloodSamples) -> tuple[str, ...]:
    """Medians over the repetitions; a flooded p99 also less the quiet one of the same bus."""
    those = samples[case]
    server, _, state = case.rpartition(", ")
    percents = FLOOD_PERCENTS.values()
    row = (case, *(f"{median(s.percentile_us(p) for s in those):,.0f}" for p in percents))
    if state == "quiet":
        return (*row, "", "")
    pairs = zip(those, samples[f"{server}, quiet"], strict=True)
    more = median(sample.percentile_us(99) - quiet.percentile_us(99) for sample, quiet in pairs)
    return (*row, f"{more:+,.0f}", f"{median(s.sent_per_second for s in those):,.0f}")


def comparisons(samples: FloodSamples) -> list[str]:
    """The p99 of this source tree over that of the other one, pair by pair."""
    lines = []
    for case, those in samples.items():
        name, comma, rest = case.partition(", ")
        others = samples.get(f"{OTHER_BROKER}, {rest}")
        if name == BROKER and comma and others:
            ratio = median(
                pairwise_ratios(
                    [sample.percentile_us(99) for sample in those],
                    [sample.percentile_us(99) for sample in others],
                )
            )
            lines.append(f"{rest}: p99 {ratio:.2f} x that of {OTHER_BROKER}")
    return lines
