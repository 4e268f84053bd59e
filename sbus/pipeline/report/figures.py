"""The plots of the report: each has a title that says what it shows, and axes with units.

Names are other people's text. They are only data of a plot, which Bokeh escapes: a title or a label
that begins with `$$` would be taken for TeX. On a dark screen the page inverts its plots.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from bokeh.models import ColumnDataSource, DatetimeTickFormatter, HoverTool, NumeralTickFormatter
from bokeh.models.annotations import BoxAnnotation
from bokeh.models.ranges import DataRange1d
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from sbus.pipeline.jobs.clients import CLIENT
from sbus.pipeline.report.facts import Facts, Row, Rows, most_unusual, worst_by_start
from sbus.protocol.text import one_line

COLOURS = ("#2b7bba", "#e2803b", "#2f9e77", "#c05a9d", "#8b6fd0", "#b0912a", "#d1495b")
OTHERS = "#8d959e"
"""Of everything without a colour of its own."""
ALARM = "#d1495b"
LABEL_CHARACTERS_MAX = 34
LOSSES_MAX = 200
"""As many as a plot can show."""


class Plot(NamedTuple):
    id: str
    """Of its element in the page."""
    title: str
    figure: figure


def draw(facts: Facts) -> dict[str, Plot | None]:
    """The plots by their names in the page; None without data for it."""
    wanted: list[tuple[Callable[[Facts], Plot], object]] = [
        (traffic, facts.summary["messages"]),
        (backlogs, facts.slow and facts.backlogs),
        (latency, worst_by_start(facts.latency)),
    ]
    return {make.__name__: make(facts) if data else None for make, data in wanted}


class Windows:
    """All windows from the first message to the last, so that a pause is visible."""

    def __init__(self, facts: Facts) -> None:
        step = timedelta(seconds=facts.window_seconds)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        first, last = facts.summary["first"], facts.summary["last"]
        start = epoch + (first - epoch) // step * step
        starts = [start + step * i for i in range((last - start) // step + 1)]
        self.width_ms = facts.window_seconds * 1_000
        self.starts_ms = _milliseconds(starts)
        self.middles_ms = [start_ms + self.width_ms / 2 for start_ms in self.starts_ms]
        self._places = {when: i for i, when in enumerate(starts)}

    def values(self, rows: Rows, value: Callable[[Row], float]) -> list[float]:
        """The value of each window's row, 0 where there is none."""
        values = [0.0] * len(self.starts_ms)
        for row in rows:
            if (place := self._places.get(row["start"])) is not None:
                values[place] += value(row)
        return values


def traffic(facts: Facts) -> Plot:
    """Red: where messages are missing from the recording."""
    windows = Windows(facts)
    plot = _plot_over_time("glance-0", "Messages a second, by prefix", 310, "messages / s")
    by_prefix = _grouped(facts.traffic, "prefix")
    columns = {"time": windows.starts_ms, "middle": windows.middles_ms}
    shown = {"from": "@time{%F %T}"}
    for place, row in enumerate(facts.prefixes):
        rates = windows.values(
            by_prefix[row["prefix"],], lambda found: found["messages"] / facts.window_seconds
        )
        columns[f"rate{place}"] = rates
        name = "others" if row["prefix"] is None else _plain(row["prefix"])
        shown[name] = f"@rate{place}{{0,0.[0]}} / s"
    stack = plot.figure.vbar_stack(
        [name for name in columns if name.startswith("rate")],
        x="middle",
        width=windows.width_ms,
        color=(*COLOURS, OTHERS)[: len(facts.prefixes)],
        source=ColumnDataSource(columns),
    )
    _add_hover(plot, stack[-1], shown, mode="vline")
    if facts.losses:
        largest = sorted(facts.losses, key=lambda row: -row["lost"])[:LOSSES_MAX]
        shown = {"missing": "@lost{0,0}", "gaps without a number": "@unknown"}
        _add_spans(plot, largest, shown, "lost", "unknown")
    return plot


def unusual(facts: Facts) -> list[Plot]:
    """Of each of the most unusual prefixes: what is usual (grey), what was, and incidents (red)."""
    windows = Windows(facts)
    traffic_of = _grouped(facts.unusual_traffic, "host", "prefix")
    incidents_of = _grouped(facts.incidents, "host", "prefix")
    plots = []
    for place, (host, prefix) in enumerate(most_unusual(facts.incidents)):
        incidents = incidents_of[host, prefix]
        title = _plain(prefix) + (f" on {_plain(host)}" if len(facts.summary["hosts"]) > 1 else "")
        plot = _plot_over_time(f"unusual-{place}", title, 170, "messages")
        usual, spread = incidents[0]["usual"], incidents[0]["spread"]
        band = BoxAnnotation(bottom=max(0.0, usual - spread), top=usual + spread)
        band.fill_color, band.fill_alpha, band.line_color = OTHERS, 0.3, None
        plot.figure.add_layout(band)
        spans = [
            {"since": row["start"], "until": row["end"], "why": row["why"]} for row in incidents
        ]
        _add_spans(plot, spans, {"incident": "@why"}, "why")
        counts = windows.values(traffic_of[host, prefix], lambda row: row["messages"])
        columns = {"time": windows.starts_ms, "messages": counts}
        line = plot.figure.step(
            *("time", "messages"),
            mode="after",
            line_width=1.5,
            color=COLOURS[0],
            source=ColumnDataSource(columns),
        )
        _add_hover(plot, line, {"from": "@time{%F %T}", "messages": "@messages{0,0}"}, mode="vline")
        plots.append(plot)
    return plots


def latency(facts: Facts) -> Plot:
    title = "From publisher to recorder and back: slowest probe (red), 95 % (orange), half (blue)"
    log = {"y_axis_type": "log", "y_range": DataRange1d()}
    plot = _plot_over_time("slow-1", title, 300, "milliseconds", **log)
    rows = worst_by_start(facts.latency)
    lines = (("max_ms", "slowest", 6), ("p95_ms", "95 %", 1), ("p50_ms", "half", 0))
    for column, name, place in lines:
        _add_line(plot, rows, column, name, COLOURS[place], "@value{0,0.[000]} ms")
    return plot


def backlogs(facts: Facts) -> Plot:
    title = "Messages waiting for the slowest clients"
    plot = _plot_over_time("slow-0", title, 300, "messages in backlog")
    by_client = _grouped(facts.backlogs, *CLIENT)
    for place, row in enumerate(facts.slow[: len(COLOURS)]):
        found = by_client[tuple(row[name] for name in CLIENT)]
        name = _plain(f"{row['program'] or 'client'} ({row['client']})")
        _add_line(plot, found, "backlog", name, COLOURS[place], "@value{0,0}")
    return plot


def _add_line(plot: Plot, rows: Rows, column: str, name: str, shade: str, shown: str) -> None:
    """The value of a column in each of the rows, at its start."""
    times = _milliseconds([row["start"] for row in rows])
    data = ColumnDataSource({"time": times, "value": [row[column] for row in rows]})
    plot.figure.scatter("time", "value", size=4, color=shade, source=data)
    line = plot.figure.step("time", "value", mode="after", line_width=2, color=shade, source=data)
    _add_hover(plot, line, {"from": "@time{%F %T}", name: shown}, mode="vline")


def _plot_over_time(id_: str, title: str, height_px: int, y_label: str, **options: Any) -> Plot:
    drawn = figure(
        height=height_px,
        sizing_mode="stretch_width",
        x_axis_type="datetime",
        x_axis_label="time (UTC)",
        y_axis_label=y_label,
        tools="xbox_zoom,reset",
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        **{"y_range": DataRange1d(start=0), **options},
    )
    drawn.toolbar.logo = None
    drawn.toolbar.autohide = True
    drawn.xaxis.formatter = DatetimeTickFormatter(
        microseconds="%H:%M:%S.%3N",  # of a recording with one window
        milliseconds="%H:%M:%S.%3N",
        seconds="%H:%M:%S",
        minsec="%H:%M:%S",
        minutes="%H:%M",
        hours="%H:%M",
        days="%-d %b",
    )
    drawn.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    return Plot(f"plot-{id_}", title, drawn)


def _add_hover(
    plot: Plot, of: "GlyphRenderer[Any]", shown: Mapping[str, str], **options: Any
) -> None:
    """What is shown under the pointer: names, and templates of their values."""
    times: dict[str, Any] = {f"@{name}": "datetime" for name in ("time", "since", "until")}
    plot.figure.add_tools(
        HoverTool(renderers=[of], tooltips=[*shown.items()], formatters=times, **options)
    )


def _add_spans(plot: Plot, spans: Rows, shown: Mapping[str, str], *names: str) -> None:
    """Mark the times from `since` to `until`; `names` are the columns that `shown` mentions."""
    columns = {name: [row[name] for row in spans] for name in names}
    for name in ("since", "until"):
        columns[name] = _milliseconds([row[name] for row in spans])
    marked = plot.figure.vstrip(
        "since", "until", source=ColumnDataSource(columns), color=ALARM, alpha=0.35, line_width=2
    )
    _add_hover(plot, marked, {**shown, "from": "@since{%F %T}", "to": "@until{%F %T}"})


def _milliseconds(times: Sequence[datetime]) -> list[float]:
    """As Bokeh counts them."""
    return [when.timestamp() * 1_000 for when in times]


def _plain(text: str) -> str:
    """A name in one short line."""
    return shortened(one_line(text), LABEL_CHARACTERS_MAX)


def shortened(text: str, length: int) -> str:
    """Without the middle, because keys differ at both ends."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def _grouped(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    """The rows by their values in these columns."""
    found: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found
