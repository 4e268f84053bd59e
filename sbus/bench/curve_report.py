"""The curves as a result, and as a part of docs/benchmarks.md with an image."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median

from sbus.bench.curves import CURVES, PACED_PER_SECOND, Case, measure_curves
from sbus.bench.load import LoadSample
from sbus.bench.panels import write_picture
from sbus.bench.report import Result, write_into_page
from sbus.bench.servers import RunSettings
from sbus.compiled import STEP

PAGE, IMAGE = "benchmarks.md", "curves.svg"
SECTION = "curves"


def curves(run: RunSettings, names: Sequence[str], seconds: float) -> Result:
    """Measure these curves: a row for each case."""
    samples = measure_curves(run, {name: CURVES[name] for name in names}, seconds)
    lost = sum(one.lost for those in samples.values() for one in those)
    return Result(
        name="curves",
        settings={
            "seconds": seconds,
            "paced_per_second": PACED_PER_SECOND,
            "step": STEP,
            **run.shown(),
        },
        columns=("case", "µs/msg", "p50 µs", "p99 µs", "MB/s", "switches"),
        rows=[row(case, those) for case, those in samples.items()],
        notes=[f"{lost:,} messages were lost."],
        samples={label(case): those for case, those in samples.items()},
    )


def label(case: Case) -> str:
    name, value, work = case
    return f"{name} {value:,}, {work}"


def row(case: Case, samples: Sequence[LoadSample]) -> tuple[str, ...]:
    """Medians; context switches are for each delivered message."""
    payload = CURVES[case[0]].bus(case[1]).payload_bytes
    rate = median(sample.received_per_second for sample in samples)
    switches = median(sample.context_switches / sample.received for sample in samples)
    return (
        label(case),
        f"{median(sample.cpu_us for sample in samples):.2f}",
        median_trip([sample.p50_ns for sample in samples]),
        median_trip([sample.p99_ns for sample in samples]),
        f"{rate * payload / 1e6:,.0f}",
        f"{switches:.2f}",
    )


def median_trip(times_ns: Sequence[int | None]) -> str:
    """In µs, of a percentile of round trips; empty where there were none."""
    trips_ns = [it for it in times_ns if it is not None]
    return f"{median(trips_ns) / 1_000:.1f}" if trips_ns else ""


# -- docs/benchmarks.md ---------------------------------------------------------------------------
def update(docs: Path, found: Result) -> None:
    """Write the curves into their page."""
    picture = f"![Each curve: CPU time per delivered message against its parameter]({IMAGE})\n"
    write_into_page(docs / PAGE, SECTION, found, picture)
    write_picture(docs / IMAGE, panels(found), PANEL_WIDTH, PANEL_HEIGHT)


PANEL_WIDTH, PANEL_HEIGHT, MARGIN, LABEL_WIDTH = 320, 210, 40, 90
COLOURS = {
    "round trip": "#1b9e77",
    "paced": "#d95f02",
    "saturated": "#7570b3",
    "fan-out": "#e7298a",
}
Line = list[tuple[int, float]]


def panels(found: Result) -> list[list[str]]:
    """One for each curve, with both scales logarithmic."""
    curves: dict[str, dict[str, Line]] = {}
    for case, cost, *_ in found.rows:
        point, _, work = case.rpartition(", ")
        name, _, value = point.partition(" ")
        line = curves.setdefault(name, {}).setdefault(work, [])
        line.append((int(value.replace(",", "")), float(cost)))
    return [list(panel(name, lines)) for name, lines in curves.items()]


def panel(name: str, lines: Mapping[str, Line]) -> Iterator[str]:
    """One curve: µs per delivered message, a line for each work, a figure at each end."""
    values = [value for line in lines.values() for value, _ in line]
    costs = [cost for line in lines.values() for _, cost in line]
    to_x = scale(values, MARGIN, PANEL_WIDTH - LABEL_WIDTH)
    decade = (*costs, 10 * min(costs))  # a flat curve shall look flat
    to_y = scale(decade, PANEL_HEIGHT - MARGIN, MARGIN)
    yield f'<text x="{MARGIN}" y="20" font-weight="bold">{escape(name)}: µs per delivery</text>'
    for value in sorted(set(values)):
        x = to_x(value)
        tick = str(value) if value < 1_000 else f"{value / 1_000:.0f}k"
        yield f'<text x="{x:.0f}" y="{PANEL_HEIGHT - 15}" text-anchor="middle">{tick}</text>'
    for work, line in lines.items():
        points = " ".join(f"{to_x(value):.1f},{to_y(cost):.1f}" for value, cost in line)
        colour = COLOURS[work]
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        (_, first), (last_value, last) = line[0], line[-1]
        y = to_y(first) + 3
        yield f'<text x="{MARGIN - 6}" y="{y:.0f}" text-anchor="end">{first:.1f}</text>'
        x, y = to_x(last_value) + 4, to_y(last) + 3
        yield f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{last:.1f} {escape(work)}</text>'


def scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """From a value to its place between start and end; logarithmic, and 0 has the place of 1."""
    low, high = (math.log(value or 1) for value in (min(values), max(values)))
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * (math.log(value or 1) - low) / span
