"""The load of a benchmark, and what a server spends on it.

One publisher and its subscribers, all in the C program load.c, which speaks the protocol of every
server that is compared.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.figures import percentile
from sbus.bench.programs import generator
from sbus.bench.servers import RunSettings, Server

SBUS_BYTES = len(b"MSG bench/peers\0")
"""Of a packet of sbus, besides the payload."""
WARM_UP_FRACTION = 5
PHASE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a publisher and its subscribers do; `mode` and `argument` are those of load.c."""

    title: str
    subscribers: int = 1
    mode: str
    argument: int = 0
    shares_cpu: bool = False
    """Whether the load runs on the broker's CPUs."""

    def arguments(self, times: Path) -> tuple[object, ...]:
        """The last ones of load.c."""
        return self.mode, times if self.mode == "lockstep" else self.argument


@dataclass(frozen=True, kw_only=True)
class LoadSample:
    """One work on one server, once; the percentiles are those of round trips, if it had any."""

    published: int
    late: int
    """Messages that a paced load sent when the next was due; then they cost less than on time."""
    received: int
    lost: int
    wall_ns: int
    cpu_ns: int
    """Of all processes of the server, as are the context switches."""
    context_switches: int
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
    def late_percent(self) -> float:
        return 100 * self.late / self.published

    @property
    def lost_percent(self) -> float:
        return 100 * self.lost / (self.received + self.lost)


def measure(
    run: RunSettings,
    server: Server,
    protocol: str,
    work: Work,
    payload_bytes: int,
    seconds: float,
) -> LoadSample:
    """Warm up, then measure once; raises BenchmarkFailed when nothing arrives."""
    times = run.directory / "times"
    to = (protocol, server.address, work.subscribers, payload_bytes)
    cpus = run.broker_cpus if work.shares_cpu else run.load_cpus
    milliseconds = round(seconds * 1_000)
    with generator("load", (*to, *work.arguments(times)), run.directory, cpus) as load:
        load.ask(f"for {max(1, milliseconds // WARM_UP_FRACTION)}", "done", PHASE_SECONDS)
        pids = server.pids()
        before = counts(pids)
        done = load.ask(f"for {milliseconds}", "done", PHASE_SECONDS + seconds)
        after = counts(pids)
    if done["received"] == 0:
        raise BenchmarkFailed(f"{work.title}: nothing arrived")
    cpu_ns, context_switches = (b - a for a, b in zip(before, after, strict=True))
    trips_ns = read_times_ns(times) if work.mode == "lockstep" else []
    return LoadSample(
        **done,
        cpu_ns=cpu_ns,
        context_switches=context_switches,
        p50_ns=percentile(trips_ns, 50) if trips_ns else None,
        p99_ns=percentile(trips_ns, 99) if trips_ns else None,
    )


def counts(pids: Sequence[int]) -> tuple[int, int]:
    """So far: CPU time in ns, and context switches."""
    return sum(proc.run_times_ns(pids).values()), sum(map(proc.context_switches, pids))


def read_times_ns(path: Path) -> list[int]:
    """The times of round trips, which load.c has written."""
    times_ns = array("Q")
    times_ns.frombytes(path.read_bytes())
    return times_ns.tolist()
