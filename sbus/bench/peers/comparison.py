"""`python -m sbus.bench peers`: every work through every peer, and tables of medians.

A round is each peer in turn, with a server of its own on which all works run one after the other;
then comes the next round. So a machine that changes its speed does so for all.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.figures import percentile
from sbus.bench.latency import read_times_ns
from sbus.bench.peers.brokers import NotInstalled, Peer
from sbus.bench.programs import generator
from sbus.bench.report import Result, table
from sbus.bench.servers import RunSettings, Server

SBUS_BYTES = len(b"MSG bench/peers\0")
"""Of a packet of sbus, besides the payload."""
WARM_UP_FRACTION = 5
PHASE_SECONDS = 60.0
NOTHING = "-"
LATE_PERCENT_MAX = 2.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one publisher and its subscribers do; `mode` and `argument` are those of load.c."""

    title: str
    column: str
    subscribers: int = 1
    mode: str
    argument: int = 0
    shares_cpu: bool = False
    """Whether the load runs on the broker's CPUs."""

    def arguments(self, samples: object) -> tuple[object, ...]:
        """The last ones of load.c."""
        return self.mode, samples if self.mode == "lockstep" else self.argument


def works(window: int) -> dict[str, Work]:
    """By name; `window` is how far the publisher of the fan-out may run ahead."""
    return {
        "round-trip": Work(
            title="round trip, everything on one CPU",
            column="lock step",
            mode="lockstep",
            shares_cpu=True,
        ),
        "paced": Work(
            title="one to one, 20,000 messages/s", column="paced", mode="paced", argument=20_000
        ),
        "saturated": Work(
            title="one to one, saturated, a write for each message",
            column="saturated",
            mode="window",
        ),
        "batched": Work(
            title="one to one, saturated, many messages in a write",
            column="batched",
            mode="batches",
        ),
        "fan-out": Work(
            title=f"one to 50, window of {window:,} messages",
            column="to 50",
            subscribers=50,
            mode="window",
            argument=window,
        ),
        "fan-out-paced": Work(
            title="one to 50, 1,000 messages/s",
            column="50 paced",
            subscribers=50,
            mode="paced",
            argument=1_000,
        ),
    }


@dataclass(frozen=True, kw_only=True)
class PeerSample:
    """One work through one peer, once; the times are those of round trips, if it had any."""

    published: int
    late: int
    """Messages that a paced load sent when the next was due; then they cost less than on time."""
    received: int
    lost: int
    wall_ns: int
    cpu_ns: int
    p50_ns: int | None
    p99_ns: int | None

    @property
    def cpu_us(self) -> float:
        """For each delivered message."""
        return self.cpu_ns / self.received / 1_000

    @property
    def received_per_second(self) -> float:
        return self.received * 1e9 / self.wall_ns

    @property
    def busy_percent(self) -> float:
        return self.cpu_ns / self.wall_ns * 100

    @property
    def late_percent(self) -> float:
        return 100 * self.late / self.published

    @property
    def lost_percent(self) -> float:
        return 100 * self.lost / (self.received + self.lost)


Samples = Mapping[str, Mapping[str, Sequence[PeerSample]]]
"""By work and by peer."""
Figures = Mapping[str, Mapping[str, float]]
"""Medians in microseconds, by what they are of and by peer."""


def compare(
    run: RunSettings, peers: Mapping[str, Peer], size_bytes: int, seconds: float, window: int
) -> Result:
    """Every work through every peer. One that is missing or fails is left out, with a note."""
    todo = works(window)
    samples: dict[str, dict[str, list[PeerSample]]] = {work: {} for work in todo}
    problems: dict[str, BenchmarkFailed] = {}
    for label, name, peer in run.rounds(peers):
        if name in problems:
            continue
        try:
            for work, sample in measure_peer(run, peer, todo, size_bytes, seconds):
                samples[work].setdefault(name, []).append(sample)
                run.progress(f"{label}, {work}: {sample.cpu_us:.2f} µs, {sample.lost} lost")
        except BenchmarkFailed as error:
            problems[name] = error
            run.progress(f"{label}: {error}")
    found = figures(samples, todo)
    return Result(
        name="peers",
        settings={"size": size_bytes, "seconds": seconds, **run.shown()},
        columns=("µs", *found),
        rows=[(name, *cells(found, name)) for name in peers],
        notes=[
            *explanation(todo),
            *rate_table(samples, todo, peers),
            *comparison_table(found, peers),
            *(f"{name}: {error}" for name, error in problems.items()),
        ],
        samples={
            "figures": found,
            "works": todo,
            "versions": {name: peer.version() for name, peer in peers.items()},
            "samples": samples,
        },
        succeeded=all(isinstance(error, NotInstalled) for error in problems.values()),
    )


def measure_peer(
    run: RunSettings, peer: Peer, todo: Mapping[str, Work], size_bytes: int, seconds: float
) -> Iterator[tuple[str, PeerSample]]:
    """Every work on one server."""
    with peer.start(run) as server:
        for name, work in todo.items():
            yield name, measure(run, server, peer.protocol, work, size_bytes, seconds)


def measure(
    run: RunSettings,
    server: Server,
    protocol: str,
    work: Work,
    size_bytes: int,
    seconds: float,
) -> PeerSample:
    """Warm up, then measure once; raises BenchmarkFailed when nothing arrives."""
    times = run.directory / "times"
    to = (protocol, server.address, work.subscribers, size_bytes - SBUS_BYTES)
    cpus = run.broker_cpus if work.shares_cpu else run.load_cpus
    milliseconds = round(seconds * 1_000)
    with generator("load", (*to, *work.arguments(times)), run.directory, cpus) as load:
        load.ask(f"for {max(1, milliseconds // WARM_UP_FRACTION)}", "done", PHASE_SECONDS)
        pids = server.pids()
        before = proc.run_times_ns(pids)
        done = load.ask(f"for {milliseconds}", "done", PHASE_SECONDS + seconds)
        after = proc.run_times_ns(pids)
    if done["received"] == 0:
        raise BenchmarkFailed(f"{work.title}: nothing arrived")
    trips_ns = read_times_ns(times) if work.mode == "lockstep" else []
    return PeerSample(
        **done,
        cpu_ns=sum(after.values()) - sum(before.values()),
        p50_ns=percentile(trips_ns, 50) if trips_ns else None,
        p99_ns=percentile(trips_ns, 99) if trips_ns else None,
    )


# -- tables ---------------------------------------------------------------------------------------
def figures(samples: Samples, todo: Mapping[str, Work]) -> Figures:
    """The median time of a round trip, and of each work the CPU time for a delivered message."""
    trips = {
        name: median(sample.p50_ns for sample in those if sample.p50_ns is not None) / 1_000
        for name, those in samples["round-trip"].items()
    }
    costs = {
        work.column: {
            peer: median(sample.cpu_us for sample in those) for peer, those in samples[name].items()
        }
        for name, work in todo.items()
    }
    return {"p50": trips, **costs}


def cells(found: Figures, peer: str) -> list[str]:
    """One row of figures."""
    return [f"{row[peer]:.2f}" if peer in row else NOTHING for row in found.values()]


def explanation(todo: Mapping[str, Work]) -> list[str]:
    """What the columns are."""
    width = max(len(work.column) for work in todo.values())
    lines = [f"{work.column:{width}}  {work.title}" for work in todo.values()]
    return ["p50 is of the time of a round trip; the rest is CPU time per delivery.", "", *lines]


def rate_table(samples: Samples, todo: Mapping[str, Work], peers: Mapping[str, Peer]) -> list[str]:
    """Deliveries per second, in thousands, and lines about what was lost, and sent too late."""
    rows = []
    for peer in peers:
        rates = [
            [one.received_per_second for one in those.get(peer, ())] for those in samples.values()
        ]
        rows.append([peer, *(f"{median(rate) / 1_000:.1f}" if rate else NOTHING for rate in rates)])
    lines = table(("1,000/s", *(work.column for work in todo.values())), rows)
    return [
        "",
        *lines,
        "",
        *(losses(samples, todo) or ["Nothing was lost."]),
        *delays(samples, todo),
    ]


def losses(samples: Samples, todo: Mapping[str, Work]) -> list[str]:
    """A line for each peer and work with any."""
    return [
        f"{peer} lost {median(one.lost_percent for one in those):.1f} % of {todo[work].title}."
        for work, by_peer in samples.items()
        for peer, those in by_peer.items()
        if any(one.lost for one in those)
    ]


def delays(samples: Samples, todo: Mapping[str, Work]) -> list[str]:
    """A line for each paced work whose load was not as even as it should be."""
    lines = []
    for work, by_peer in samples.items():
        worst = max(
            (median(s.late_percent for s in those) for those in by_peer.values()), default=0
        )
        if worst > LATE_PERCENT_MAX:
            lines.append(
                f"{todo[work].column}: up to {worst:.0f} % of the messages were late, and cheaper "
                "for that."
            )
    return lines


def comparison_table(found: Figures, peers: Mapping[str, Peer]) -> list[str]:
    """How many times as much sbus takes as the other broker that takes the least."""
    own = [name for name, peer in peers.items() if peer.is_sbus and "apart" not in name]
    if not own:
        return [""]
    others = [name for name, peer in peers.items() if peer.is_broker and not peer.is_sbus]
    rows = []
    for figure, row in found.items():
        measured = [name for name in others if name in row]
        if measured:
            best = min(measured, key=row.__getitem__)
            ratios = (f"{row[name] / row[best]:.2f} x" if name in row else NOTHING for name in own)
            rows.append((figure, best, f"{row[best]:.2f}", *ratios))
    return ["", *table(("", "least", "µs", *own), rows), ""] if rows else [""]
