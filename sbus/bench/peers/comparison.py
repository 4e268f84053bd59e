"""`python -m sbus.bench peers`: every work through every peer, and tables of medians.

A round is each peer in turn, with a server of its own on which all works run one after the other;
then comes the next round. So a machine that changes its speed does so for all.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from sbus.bench import BenchmarkFailed
from sbus.bench.load import SBUS_BYTES, LoadSample, Work, measure
from sbus.bench.peers.brokers import NotInstalled, Peer
from sbus.bench.report import Result, table
from sbus.bench.servers import RunSettings

NOTHING = "-"
LATE_PERCENT_MAX = 2.0


WORKS = {
    "lock step": Work(title="round trip, everything on one CPU", mode="lockstep", shares_cpu=True),
    "paced": Work(title="one to one, 20,000 messages/s", mode="paced", argument=20_000),
    "saturated": Work(title="one to one, saturated, a write for each message", mode="window"),
    "batched": Work(title="one to one, saturated, many messages in a write", mode="batches"),
    "to 50": Work(
        title="one to 50, window of 256 messages", subscribers=50, mode="window", argument=256
    ),
    "50 paced": Work(
        title="one to 50, 1,000 messages/s", subscribers=50, mode="paced", argument=1_000
    ),
}
"""By the head of their columns."""
Samples = Mapping[str, Mapping[str, Sequence[LoadSample]]]
"""By work and by peer."""
Figures = Mapping[str, Mapping[str, float]]
"""Medians in microseconds, by what they are of and by peer."""


def compare(run: RunSettings, peers: Mapping[str, Peer], size_bytes: int, seconds: float) -> Result:
    """Every work through every peer. One that is missing or fails is left out, with a note."""
    payload_bytes = size_bytes - SBUS_BYTES
    samples: dict[str, dict[str, list[LoadSample]]] = {work: {} for work in WORKS}
    problems: dict[str, BenchmarkFailed] = {}
    for label, name, peer in run.rounds(peers):
        if name in problems:
            continue
        try:
            for work, sample in measure_peer(run, peer, payload_bytes, seconds):
                samples[work].setdefault(name, []).append(sample)
                run.progress(f"{label}, {work}: {sample.cpu_us:.2f} µs, {sample.lost} lost")
        except BenchmarkFailed as error:
            problems[name] = error
            run.progress(f"{label}: {error}")
    found = figures(samples)
    return Result(
        name="peers",
        settings={"size": size_bytes, "seconds": seconds, **run.shown()},
        columns=("µs", *found),
        rows=[(name, *cells(found, name)) for name in peers],
        notes=[
            *explanation(),
            *rate_table(samples, peers),
            *comparison_table(found, peers),
            *(f"{name}: {error}" for name, error in problems.items()),
        ],
        samples={
            "figures": found,
            "works": WORKS,
            "versions": {name: peer.version() for name, peer in peers.items()},
            "samples": samples,
        },
        succeeded=all(isinstance(error, NotInstalled) for error in problems.values()),
    )


def measure_peer(
    run: RunSettings, peer: Peer, payload_bytes: int, seconds: float
) -> Iterator[tuple[str, LoadSample]]:
    """Every work on one server."""
    with peer.start(run) as server:
        for name, work in WORKS.items():
            yield name, measure(run, server, peer.protocol, work, payload_bytes, seconds)


# -- tables ---------------------------------------------------------------------------------------
def figures(samples: Samples) -> Figures:
    """The median time of a round trip, and of each work the CPU time for a delivered message."""
    trips = {
        name: median(sample.p50_ns for sample in those if sample.p50_ns is not None) / 1_000
        for name, those in samples["lock step"].items()
    }
    costs = {
        work: {peer: median(one.cpu_us for one in those) for peer, those in samples[work].items()}
        for work in WORKS
    }
    return {"p50": trips, **costs}


def cells(found: Figures, peer: str) -> list[str]:
    """One row of figures."""
    return [f"{row[peer]:.2f}" if peer in row else NOTHING for row in found.values()]


def explanation() -> list[str]:
    """What the columns are."""
    width = max(map(len, WORKS))
    lines = [f"{name:{width}}  {work.title}" for name, work in WORKS.items()]
    return ["p50 is of the time of a round trip; the rest is CPU time per delivery.", "", *lines]


def rate_table(samples: Samples, peers: Mapping[str, Peer]) -> list[str]:
    """Deliveries per second, in thousands, and lines about what was lost, and sent too late."""
    rows = []
    for peer in peers:
        rates = [
            [one.received_per_second for one in those.get(peer, ())] for those in samples.values()
        ]
        rows.append([peer, *(f"{median(rate) / 1_000:.1f}" if rate else NOTHING for rate in rates)])
    lines = table(("1,000/s", *WORKS), rows)
    return [
        "",
        *lines,
        "",
        *(losses(samples) or ["Nothing was lost."]),
        *delays(samples),
    ]


def losses(samples: Samples) -> list[str]:
    """A line for each peer and work with any."""
    return [
        f"{peer} lost {median(one.lost_percent for one in those):.1f} % of {WORKS[work].title}."
        for work, by_peer in samples.items()
        for peer, those in by_peer.items()
        if any(one.lost for one in those)
    ]


def delays(samples: Samples) -> list[str]:
    """A line for each paced work whose load was not as even as it should be."""
    lines = []
    for work, by_peer in samples.items():
        worst = max(
            (median(s.late_percent for s in those) for those in by_peer.values()), default=0
        )
        if worst > LATE_PERCENT_MAX:
            lines.append(
                f"{work}: up to {worst:.0f} % of the messages were late, and cheaper for that."
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
