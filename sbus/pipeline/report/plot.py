"""What all plots of the report share: sizes, colours, axes, and what they show under the pointer.

Names are other people's text. They are only data of a plot, which Bokeh escapes: a title or a label
that begins with `$$` would be taken for TeX. On a dark screen the page inverts its plots.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from bokeh.models import ColumnDataSource, DatetimeTickFormatter, HoverTool, NumeralTickFormatter
from bokeh.models.ranges import DataRange1d
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from sbus.pipeline.report.facts import Rows
from sbus.protocol.text import one_line

COLOURS = ("#2b7bba", "#e2803b", "#2f9e77", "#c05a9d", "#8b6fd0", "#b0912a", "#d1495b")
OTHERS = "#8d959e"
"""Of everything without a colour of its own."""
ALARM = "#d1495b"
LABEL_CHARACTERS_MAX = 34


class Plot(NamedTuple):
    id: str
    """Of its element in the page."""
    title: str
    figure: figure


def plot_over_time(id_: str, title: str, height_px: int, y_label: str, **options: Any) -> Plot:
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
        seconds="%H:%M:%S", minsec="%H:%M:%S", minutes="%H:%M", hours="%H:%M", days="%-d %b"
    )
    drawn.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    return Plot(f"plot-{id_}", title, drawn)


def add_hover(
    plot: Plot, of: "GlyphRenderer[Any]", shown: Mapping[str, str], **options: Any
) -> None:
    """What is shown under the pointer: names, and templates of their values."""
    times: dict[str, Any] = {f"@{name}": "datetime" for name in ("time", "since", "until")}
    plot.figure.add_tools(
        HoverTool(renderers=[of], tooltips=[*shown.items()], formatters=times, **options)
    )


def add_spans(plot: Plot, spans: Rows, shown: Mapping[str, str], *names: str) -> None:
    """Mark the times from `since` to `until`; `names` are the columns that `shown` mentions."""
    columns = {name: [row[name] for row in spans] for name in names}
    for name in ("since", "until"):
        columns[name] = milliseconds([row[name] for row in spans])
    marked = plot.figure.vstrip(
        "since", "until", source=ColumnDataSource(columns), color=ALARM, alpha=0.35, line_width=2
    )
    add_hover(plot, marked, {**shown, "from": "@since{%F %T}", "to": "@until{%F %T}"})


def milliseconds(times: Sequence[datetime]) -> list[float]:
    """As Bokeh counts them."""
    return [when.timestamp() * 1_000 for when in times]


def plain(text: str) -> str:
    """A name in one short line."""
    return shortened(one_line(text), LABEL_CHARACTERS_MAX)


def shortened(text: str, length: int) -> str:
    """Without the middle, because keys differ at both ends."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def grouped(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    """The rows by their values in these columns."""
    found: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found
