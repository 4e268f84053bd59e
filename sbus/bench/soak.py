"""The benchmark of endurance: saturation for minutes, and an account of every message.

The C program (flood.c) checks each subscriber's ledger as it runs. This module collects the figures
of each interval, with the memory of every process of the bus, and judges them at the end: did
anything stand still, did anything get lost without a notice, did memory grow?
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from sbus.bench import BenchmarkFailed, proc
from sbus.bench.figures import change_percent, outer_thirds
from sbus.bench.programs import Child
from sbus.bench.report import Result, table_line
from sbus.bench.servers import RunSettings, Server, Start

ANSWER_SECONDS_MAX = 30.0
DRAIN_SECONDS_MAX = 120.0
GROWTH_PERCENT_MAX = 10.0
MIB = 1024 * 1024
COLUMNS = ("   s", "  msg/s", "deliv./s", "      lost", "    MiB", "largest")


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """The clients; the last `slow` subscribers wait after each packet, `kinds` differ."""

    publishers: int = 16
    subscribers: int = 32
    slow: int = 8
    kinds: int = 8
    size_bytes: int = 110


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What happened in one interval, and the memory at its end."""

    at_seconds: float
    length_seconds: float
    sent: int
    received: int
    lost_in_all: int
    idle_publishers: int
    """How many sent nothing in it."""
    idle_subscribers: int
    """How many received nothing in it."""
    process_bytes: dict[int, int]
    """Memory of each process; what several share is divided among them."""

    @property
    def memory_bytes(self) -> int:
        return sum(self.process_bytes.values())

    def cells(self) -> tuple[str, ...]:
        return (
            f"{self.at_seconds:.0f}",
            f"{self.sent / self.length_seconds:,.0f}",
            f"{self.received / self.length_seconds:,.0f}",
            f"{self.lost_in_all:,}",
            f"{self.memory_bytes / MIB:.1f}",
            f"{max(self.process_bytes.values()) / MIB:.1f}",
        )


def soak(
    run: RunSettings,
    start: Start,
    crowd: Crowd,
    *,
    seconds: float,
    interval_seconds: float,
    settings: Mapping[str, str | int | float],
) -> Result:
    """Flood what `start` starts; a line of the table is progress after each interval."""
    counts = (crowd.publishers, crowd.subscribers, crowd.slow, crowd.kinds, crowd.size_bytes)
    widths = [len(column) for column in COLUMNS]
    run.progress(table_line(COLUMNS, widths))
    with start() as server, run.load("flood", server.address, *counts) as load:
        intervals = []
        for interval in watch(load, server, seconds, interval_seconds):
            intervals.append(interval)
            run.progress(table_line(interval.cells(), widths))
        try:
            final = load.ask("stop", "stopped", DRAIN_SECONDS_MAX)
        except BenchmarkFailed as error:
            run.progress(f"not everything arrived: {error}")
            final = {}
        server.pids()
        violations = load.error_output()
    succeeded, notes = verdict(intervals, final)
    return Result(
        name="soak",
        settings={"seconds": round(seconds, 1), **asdict(crowd), **settings},
        columns=tuple(column.strip() for column in COLUMNS),
        rows=[interval.cells() for interval in intervals],
        notes=[*notes, *violations.splitlines()],
        samples={"intervals": intervals, "final": final},
        succeeded=succeeded,
    )


def watch(
    load: Child, server: Server, seconds: float, interval_seconds: float
) -> Iterator[Interval]:
    """As many whole intervals as `seconds` hold, at least one."""
    before = load.ask("report", "report", ANSWER_SECONDS_MAX)
    started = then = time.monotonic()
    for _ in range(max(1, round(seconds / interval_seconds))):
        time.sleep(interval_seconds)
        fields = load.ask("report", "report", ANSWER_SECONDS_MAX)
        now = time.monotonic()
        pids = server.pids()
        yield Interval(
            at_seconds=now - started,
            length_seconds=now - then,
            sent=fields["sent"] - before["sent"],
            received=fields["received"] - before["received"],
            lost_in_all=fields["lost"],
            idle_publishers=fields["idle_publishers"],
            idle_subscribers=fields["idle_subscribers"],
            process_bytes={pid: proc.proportional_memory_bytes(pid) for pid in pids},
        )
        before, then = fields, now


def verdict(intervals: Sequence[Interval], final: Mapping[str, int]) -> tuple[bool, list[str]]:
    """Whether the soak passed, and a line for each criterion; without `final` it has not."""
    idle_publishers = sum(interval.idle_publishers for interval in intervals)
    idle_subscribers = sum(interval.idle_subscribers for interval in intervals)
    wedged = idle_publishers + idle_subscribers > 0
    stood = (
        f"YES: idle in a whole interval: {idle_publishers} publishers, {idle_subscribers} subscr."
    )
    first, last = outer_thirds([interval.memory_bytes for interval in intervals])
    growth = change_percent(max(last), max(first))
    memory = (
        f"memory     at most {max(first) / MIB:.1f} MiB in the first third, "
        f"{max(last) / MIB:.1f} in the last: {growth:+.1f} %"
    )
    if not final:
        return False, ["wedged     YES: not everything arrived in the end", memory]
    notes = [
        f"messages   {final['sent']:,} sent, {final['received']:,} received, "
        f"{final['lost']:,} lost, {final['notices']:,} notices",
        f"wedged     {stood if wedged else 'nothing'}",
        f"uncounted  {'nothing' if final['violations'] == 0 else final['violations']}",
        memory,
    ]
    well = not wedged and final["violations"] == 0 and growth <= GROWTH_PERCENT_MAX
    return well, notes
