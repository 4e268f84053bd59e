"""The plots of the report, as plotly figures.

Each has a title that says what it shows, and axes with units. What all have in common (fonts,
colours of paper and grid, which depend on the reader's screen) is `plots.js`'s. Names are in the
table beside a plot, with the colour they have in it; a colour is one of `COLOURS`, by its place.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sbus.pipeline.report.facts import Facts, Row, Rows, strangest
from sbus.pipeline.report.markup import LABEL_MAX, plain, shortened

COLOURS = ("#2b7bba", "#e2803b", "#2f9e77", "#c05a9d", "#8b6fd0", "#b0912a", "#d1495b")
OTHERS = "#8d959e"
"""Whatever has no colour of its own."""
ALARM = "#d1495b"
NODES_MAX = 9
"""Of each column of the flow."""
OTHERS_LABEL = "others"
LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
"""Below the title; for the few plots that have no table with their colours."""


class Plot(NamedTuple):
    figure: go.Figure
    height_px: int
    wide: bool = False
    """On a small screen it is scrolled rather than squeezed."""


def colour(place: int) -> str:
    return COLOURS[place] if place < len(COLOURS) else OTHERS


def _plot(title: str, height_px: int, *, wide: bool = False, **layout: Any) -> Plot:
    figure = go.Figure()
    figure.update_layout(template="none", title_text=title, showlegend=False, **layout)
    return Plot(figure, height_px, wide)


def _time_axis() -> dict[str, Any]:
    return {"type": "date", "title": {"text": "time (UTC)"}}


# -- over time -------------------------------------------------------------------------------------
class Windows:
    """All windows from the first message to the last, so that a pause is seen as one."""

    def __init__(self, facts: Facts) -> None:
        step = timedelta(seconds=facts.window_seconds)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        first, last = facts.summary["first"], facts.summary["last"]
        start = epoch + (first - epoch) // step * step
        self.starts = [start + step * i for i in range((last - start) // step + 1)]
        self.seconds = facts.window_seconds
        self._place = {when: i for i, when in enumerate(self.starts)}

    @property
    def labels(self) -> list[str]:
        return [_label(when) for when in self.starts]

    def spread(self, rows: Rows, value: Callable[[Row], float]) -> list[float]:
        """Of each window its row's value, 0 where there is none."""
        values = [0.0] * len(self.starts)
        for row in rows:
            if (place := self._place.get(row["start"])) is not None:
                values[place] += value(row)
        return values


def _label(when: datetime) -> str:
    return when.replace(tzinfo=None).isoformat(sep=" ")


def traffic(facts: Facts) -> Plot:
    windows = Windows(facts)
    plot = _plot(
        "Messages a second, by prefix",
        310,
        xaxis=_time_axis(),
        yaxis={"title": {"text": "messages / s"}, "rangemode": "tozero"},
        hovermode="x unified",
    )
    by_prefix = grouped(facts.traffic, "prefix")
    for place, row in enumerate(facts.prefixes):
        per_second = windows.spread(
            by_prefix[row["prefix"],], lambda found: found["messages"] / windows.seconds
        )
        own = colour(place) if row["prefix"] is not None else OTHERS
        plot.figure.add_scatter(
            x=windows.labels,
            y=_rounded(per_second),
            name=OTHERS_LABEL if row["prefix"] is None else plain(row["prefix"]),
            stackgroup="all",
            mode="lines",
            line={"width": 0.6, "color": own, "shape": "hv"},
            fillcolor=own,
            hovertemplate="%{y:,.4~g} / s",
        )
    return plot


def latency(facts: Facts) -> Plot:
    plot = _plot(
        "From publisher to recorder and back: the recorder's probes",
        300,
        xaxis=_time_axis(),
        yaxis={
            "title": {"text": "milliseconds"},
            "type": "log",
            "dtick": 1,
            "minor": {"dtick": "D1"},
        },
        hovermode="x unified",
        margin={"t": 40},
    )
    plot.figure.update_layout(showlegend=True, legend=LEGEND)
    rows = worst_by_start(facts.latency)
    x = [_label(row["start"]) for row in rows]
    for field, words, place in (
        ("max_ms", "slowest", 6),
        ("p95_ms", "95 %", 1),
        ("p50_ms", "half", 0),
    ):
        y = [row[field] for row in rows]
        plot.figure.add_scatter(
            x=x,
            y=_rounded(y),
            name=words,
            mode="lines" if len(x) > 1 else "markers",
            line={"color": COLOURS[place], "width": 2, "shape": "hv"},
            hovertemplate="%{y:.3~g} ms",
        )
    return plot


def worst_by_start(rows: Rows) -> Rows:
    """Of several recorders the slowest, window by window; windows without a figure are left out."""
    worst: dict[datetime, Row] = {}
    for row in rows:
        known = worst.get(row["start"])
        if row["max_ms"] is not None and (known is None or row["max_ms"] > known["max_ms"]):
            worst[row["start"]] = row
    return [worst[start] for start in sorted(worst)]


def backlogs(facts: Facts) -> Plot:
    plot = _plot(
        "Messages waiting for the slowest clients",
        300,
        xaxis=_time_axis(),
        yaxis={"title": {"text": "messages in backlog"}, "rangemode": "tozero"},
        hovermode="x unified",
    )
    by_client = grouped(facts.backlogs, "recorder", "client", "connected_at")
    for place, row in enumerate(facts.slow[: len(COLOURS)]):
        found = by_client[row["recorder"], row["client"], row["connected_at"]]
        plot.figure.add_scatter(
            x=[_label(each["start"]) for each in found],
            y=[each["backlog"] for each in found],
            name=plain(f"{row['program'] or 'client'} ({row['client']})"),
            mode="lines" if len(found) > 1 else "markers",
            line={"color": colour(place), "width": 2, "shape": "hv"},
            hovertemplate="%{y:,}",
        )
    return plot


def losses(facts: Facts, recorders: Sequence[str]) -> Plot:
    plot = _plot(
        "Messages missing from the recording",
        280,
        xaxis=_time_axis(),
        yaxis={"title": {"text": "messages lost"}, "rangemode": "tozero"},
        barmode="stack",
        bargap=0,
    )
    by_recorder = grouped(facts.losses, "recorder")
    width_ms = facts.window_seconds * 1_000
    for place, recorder in enumerate(recorders):
        rows = by_recorder[recorder,]
        plot.figure.add_bar(
            x=[_label(row["start"]) for row in rows],
            y=[row["lost"] for row in rows],
            name=plain(recorder),
            width=width_ms,
            offset=0,
            marker_color=colour(place),
            hovertemplate="%{x}: %{y:,} lost",
        )
    unknown = [row for row in facts.losses if row["unknown"]]
    plot.figure.add_scatter(
        x=[_label(row["start"]) for row in unknown],
        y=[0] * len(unknown),
        mode="text",
        text=["?"] * len(unknown),
        textposition="top center",
        textfont={"color": ALARM, "size": 18},
        name="number unknown",
        hovertemplate="%{x}: lost, nobody knows how many",
    )
    plot.figure.update_xaxes(
        range=[_label(facts.summary["first"]), _label(facts.summary["last"])]
        if facts.summary["first"]
        else None
    )
    return plot


def strange(facts: Facts) -> Plot:
    """The strangest prefixes, one above the other: what is usual, what was, what stood out."""
    windows = Windows(facts)
    wanted = strangest(facts.strange)
    many_hosts = len(facts.summary["hosts"]) > 1
    titles = [plain(name) + (f" on {plain(host)}" if many_hosts else "") for host, name in wanted]
    figure = make_subplots(rows=len(wanted), cols=1, shared_xaxes=True, subplot_titles=titles)
    figure.update_layout(
        template="none",
        title_text="Messages in each window, and what was strange",
        showlegend=False,
        margin={"t": 34},
    )
    traffic_of = grouped(facts.strange_traffic, "host", "prefix")
    strange_of = grouped(facts.strange, "host", "prefix")
    for place, key in enumerate(wanted):
        values = windows.spread(traffic_of[key], lambda row: row["messages"])
        odd = strange_of[key]
        usual, spread = odd[0]["usual"], odd[0]["spread"]
        figure.add_hrect(
            y0=max(0.0, usual - spread),
            y1=usual + spread,
            fillcolor=OTHERS,
            opacity=0.3,
            line_width=0,
            row=place + 1,
            col=1,
        )
        figure.add_scatter(
            x=windows.labels,
            y=values,
            mode="lines",
            line={"color": colour(place), "width": 1.5, "shape": "hv"},
            name=titles[place],
            hovertemplate="%{x}: %{y:,}<extra></extra>",
            row=place + 1,
            col=1,
        )
        figure.add_scatter(
            x=[_label(row["start"] + timedelta(seconds=windows.seconds / 2)) for row in odd],
            y=[row["messages"] for row in odd],
            mode="markers",
            marker={"color": ALARM, "size": 7},
            hovertemplate="%{x}: %{y:,}<extra>strange</extra>",
            row=place + 1,
            col=1,
        )
    figure.update_annotations(font_size=12, x=0, xanchor="left")
    figure.update_yaxes(rangemode="tozero", title_text="messages")
    figure.update_xaxes(title_text="time (UTC)", row=len(wanted), col=1)
    return Plot(figure, 90 + 150 * len(wanted))


# -- distributions ---------------------------------------------------------------------------------
RECIPIENTS_MAX = 24
"""Bars; whatever goes to more is in the last."""


def fan_out(facts: Facts) -> Plot:
    known = [row for row in facts.fan_out if row["recipients"] is not None]
    counts: dict[int, int] = defaultdict(int)
    for row in known:
        counts[min(row["recipients"], RECIPIENTS_MAX)] += row["messages"]
    total = sum(counts.values())
    places = range(max(counts) + 1)
    labels = [f"{place}+" if place == RECIPIENTS_MAX else str(place) for place in places]
    shares = [100 * counts[place] / total for place in places]
    plot = _plot(
        "To how many clients a message went",
        300,
        xaxis={"title": {"text": "recipients"}, "type": "category"},
        yaxis={"title": {"text": "% of messages"}, "rangemode": "tozero"},
        bargap=0.15,
    )
    plot.figure.add_bar(
        x=labels,
        y=_rounded(shares),
        marker_color=[ALARM if place == 0 else COLOURS[0] for place in places],
        customdata=[counts[place] for place in places],
        text=[f"{value:.0f} %" if value >= 0.5 else "" for value in shares],
        textposition="outside" if len(labels) <= 14 else "none",
        cliponaxis=False,
        hovertemplate="%{x} recipients: %{customdata:,} messages (%{y:.3~g} %)<extra></extra>",
    )
    return plot


def broker_latency(facts: Facts) -> Plot:
    counts: dict[float, int] = defaultdict(int)
    for row in facts.broker_latency:
        counts[row["bound_us"] or float("inf")] += row["deliveries"]
    bounds = sorted(counts)
    total = sum(counts.values())
    shares = [100 * counts[bound] / total for bound in bounds]
    plot = _plot(
        "Inside the broker: how long deliveries took",
        300,
        xaxis={"title": {"text": "at most"}, "type": "category"},
        yaxis={"title": {"text": "% of deliveries"}, "rangemode": "tozero"},
        bargap=0.1,
    )
    plot.figure.add_bar(
        x=[_bound(bound, bounds) for bound in bounds],
        y=_rounded(shares),
        marker_color=COLOURS[2],
        customdata=[counts[bound] for bound in bounds],
        hovertemplate="%{x}: %{customdata:,} deliveries (%{y:.3~g} %)<extra></extra>",
    )
    return plot


def _bound(bound_us: float, bounds: Sequence[float]) -> str:
    from sbus.cli.terminal.units import microseconds

    if bound_us == float("inf"):
        return f"over {microseconds(bounds[-2])}" if len(bounds) > 1 else "any"
    return microseconds(bound_us)


# -- who sends what to whom ------------------------------------------------------------------------
class _Column:
    """One column of the flow: the largest by name, the others together."""

    def __init__(self, amounts: dict[str, int]) -> None:
        ordered = sorted(amounts, key=lambda name: (-amounts[name], name))
        self.named = set(ordered[: NODES_MAX if len(ordered) <= NODES_MAX else NODES_MAX - 1])

    def name(self, name: str) -> str:
        return name if name in self.named else OTHERS_LABEL


def who(row: Row) -> str:
    """A program and its user, as far as they are known."""
    program = shortened(row["program"] or "a program", LABEL_MAX - 12)
    return program if row["uid"] is None else f"{program} (uid {row['uid']})"


def flow(facts: Facts) -> Plot:
    """Two rows of links: from senders to prefixes, and from prefixes to who asked for them."""
    halves = [
        [(who(row), row["prefix"], row["messages"]) for row in facts.senders],
        [(row["prefix"], who(row), row["deliveries"]) for row in facts.receivers],
    ]
    prefixes = _Column(_sums((prefix, count) for _, prefix, count in halves[0]))
    senders = _Column(_sums((sender, count) for sender, _, count in halves[0]))
    receivers = _Column(_sums((receiver, count) for _, receiver, count in halves[1]))
    links: dict[tuple[tuple[int, str], tuple[int, str]], int] = defaultdict(int)
    for sender, prefix, count in halves[0]:
        links[(0, senders.name(sender)), (1, prefixes.name(prefix))] += count
    for prefix, receiver, count in halves[1]:
        links[(1, prefixes.name(prefix)), (2, receivers.name(receiver))] += count
    nodes = list(dict.fromkeys(node for link in links for node in link))
    place = {node: i for i, node in enumerate(nodes)}
    coloured = {node: i for i, node in enumerate(n for n in nodes if n[0] == 1)}
    shades = [colour(coloured[a if a[0] == 1 else b]) for a, b in links]
    plot = _plot(
        "From senders, by prefix, to those who asked for it",
        440,
        wide=True,
        margin={"l": 4, "r": 4},
    )
    plot.figure.add_sankey(
        arrangement="snap",
        node={
            "label": [plain(name) for _, name in nodes],
            "color": [colour(coloured[node]) if node in coloured else OTHERS for node in nodes],
            "align": "left",
            "pad": 14,
            "thickness": 14,
            "line": {"width": 0},
            "hovertemplate": "%{label}: %{value:,.0f}<extra></extra>",
        },
        link={
            "source": [place[a] for a, _ in links],
            "target": [place[b] for _, b in links],
            "value": list(links.values()),
            "color": [_translucent(shade) for shade in shades],
            "hovertemplate": "%{source.label} → %{target.label}: %{value:,.0f}<extra></extra>",
        },
    )
    return plot


def _translucent(shade: str) -> str:
    red, green, blue = (int(shade[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.38)"


def _sums(pairs: Any) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for name, count in pairs:
        found[name] += count
    return found


# -- small things ----------------------------------------------------------------------------------
def grouped(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    found: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


def _rounded(values: Sequence[float]) -> list[float]:
    """Five digits: more would only make the page longer."""
    return [float(f"{value:.5g}") for value in values]
