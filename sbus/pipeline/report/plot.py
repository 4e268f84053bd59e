"""What all plots of the report share: their sizes and colours, and text that is safe in a label.

Fonts and the colours of paper and grid depend on the reader's screen; `plots.js` sets them. Names
are in the table beside a plot, with the colour that they have in it.
"""

import html
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import plotly.graph_objects as go

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
    figure: go.Figure
    height_px: int
    is_wide: bool = False
    """A small screen scrolls it rather than squeezing it."""

    @property
    def title(self) -> str:
        return str(self.figure.layout.title.text)


def empty_plot(
    id_: str, title: str, height_px: int, *, is_wide: bool = False, **layout: Any
) -> Plot:
    figure = go.Figure()
    figure.update_layout(template="none", title_text=title, showlegend=False, **layout)
    return Plot(f"plot-{id_}", figure, height_px, is_wide)


def plot_over_time(id_: str, title: str, height_px: int, y_title: str, **layout: Any) -> Plot:
    return empty_plot(
        *(id_, title, height_px),
        xaxis={"type": "date", "title": {"text": "time (UTC)"}},
        yaxis={"title": {"text": y_title}, "rangemode": "tozero"},
        **{"hovermode": "x unified", **layout},
    )


def distribution(
    id_: str, title: str, x_title: str, y_title: str, counts: Mapping[str, int], **bar: Any
) -> Plot:
    """Bars of the percentages that the counts are of their sum."""
    total = sum(counts.values())
    plot = empty_plot(
        *(id_, title, 300),
        xaxis={"title": {"text": x_title}, "type": "category"},
        yaxis={"title": {"text": f"% of {y_title}"}, "rangemode": "tozero"},
    )
    plot.figure.add_bar(
        x=list(counts),
        y=rounded([100 * count / total for count in counts.values()]),
        customdata=list(counts.values()),
        **bar,
    )
    return plot


def colour(place: int) -> str:
    return COLOURS[place] if place < len(COLOURS) else OTHERS


def plain(text: str) -> str:
    """A label; plotly interprets a small part of HTML in all text."""
    return html.escape(shortened(one_line(text), LABEL_CHARACTERS_MAX), quote=False)


def shortened(text: str, length: int) -> str:
    """Without the middle, because keys differ at both ends."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def time_label(when: datetime) -> str:
    return when.replace(tzinfo=None).isoformat(sep=" ")


def grouped(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    """The rows by their values in these columns."""
    found: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


def rounded(values: Sequence[float]) -> list[float]:
    """Five digits; more would only make the page longer."""
    return [float(f"{value:.5g}") for value in values]
