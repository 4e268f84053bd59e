"""The plots of the report, as plotly figures: each has a title that says what it shows, and axes
with units."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from plotly.subplots import make_subplots

from sbus.cli.terminal.units import microseconds
from sbus.pipeline.report.facts import Facts, Row, Rows, most_unusual
from sbus.pipeline.report.plot import (
    ALARM,
    COLOURS,
    OTHERS,
    Plot,
    colour,
    distribution,
    grouped,
    plain,
    plot_over_time,
    rounded,
    time_label,
)
from sbus.pipeline.report.sankey import OTHERS_LABEL, flow

LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
"""Below the title, for a plot without a table beside it."""
RECIPIENTS_MAX = 24
"""Of the last bar, which also stands for more."""


def draw(facts: Facts) -> dict[str, Plot | None]:
    """All plots in the order of the page; None without data for it."""
    summary = facts.summary
    is_fan_out_known = any(row["recipients"] is not None for row in facts.fan_out)
    wanted: list[tuple[Callable[[Facts], Plot], object]] = [
        (traffic, summary["messages"]),
        (flow, summary["publishers"] is not None and summary["messages"]),
        (fan_out, is_fan_out_known),
        (backlogs, facts.slow and facts.backlogs),
        (latency, worst_by_start(facts.latency)),
        (broker_latency, sum(row["deliveries"] for row in facts.broker_latency)),
        (losses, summary["gaps"]),
        (unusual, facts.incidents),
    ]
    return {make.__name__: make(facts) if data else None for make, data in wanted}


# -- over time -------------------------------------------------------------------------------------
class Windows:
    """All windows from the first message to the last, so that a pause is visible."""

    def __init__(self, facts: Facts) -> None:
        step = timedelta(seconds=facts.window_seconds)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        first, last = facts.summary["first"], facts.summary["last"]
        start = epoch + (first - epoch) // step * step
        starts = [start + step * i for i in range((last - start) // step + 1)]
        self.labels = [time_label(when) for when in starts]
        self._places = {when: i for i, when in enumerate(starts)}

    def values(self, rows: Rows, value: Callable[[Row], float]) -> list[float]:
        """The value of each window's row, 0 where there is none."""
        values = [0.0] * len(self.labels)
        for row in rows:
            if (place := self._places.get(row["start"])) is not None:
                values[place] += value(row)
        return values


def traffic(facts: Facts) -> Plot:
    windows = Windows(facts)
    plot = plot_over_time("glance-0", "Messages a second, by prefix", 310, "messages / s")
    by_prefix = grouped(facts.traffic, "prefix")
    for place, row in enumerate(facts.prefixes):
        per_second = windows.values(
            by_prefix[row["prefix"],], lambda found: found["messages"] / facts.window_seconds
        )
        own = colour(place) if row["prefix"] is not None else OTHERS
        plot.figure.add_scatter(
            x=windows.labels,
            y=rounded(per_second),
            name=OTHERS_LABEL if row["prefix"] is None else plain(row["prefix"]),
            stackgroup="all",
            mode="lines",
            line={"width": 0.6, "color": own, "shape": "hv"},
            fillcolor=own,
            hovertemplate="%{y:,.4~g} / s",
        )
    return plot


def latency(facts: Facts) -> Plot:
    title = "From publisher to recorder and back: the recorder's probes"
    plot = plot_over_time("slow-1", title, 300, "milliseconds", margin={"t": 40})
    plot.figure.update_layout(showlegend=True, legend=LEGEND)
    plot.figure.update_yaxes(type="log", rangemode="normal", dtick=1, minor={"dtick": "D1"})
    rows = worst_by_start(facts.latency)
    lines = (("max_ms", "slowest", 6), ("p95_ms", "95 %", 1), ("p50_ms", "half", 0))
    for column, name, place in lines:
        values = rounded([row[column] for row in rows])
        _add_line(plot, rows, values, name, COLOURS[place], "%{y:.3~g} ms")
    return plot


def worst_by_start(rows: Rows) -> Rows:
    """The slowest recorder's row of each window, without windows that have no figure."""
    worst: dict[datetime, Row] = {}
    for row in rows:
        known = worst.get(row["start"])
        if row["max_ms"] is not None and (known is None or row["max_ms"] > known["max_ms"]):
            worst[row["start"]] = row
    return [worst[start] for start in sorted(worst)]


def backlogs(facts: Facts) -> Plot:
    title = "Messages waiting for the slowest clients"
    plot = plot_over_time("slow-0", title, 300, "messages in backlog")
    by_client = grouped(facts.backlogs, "recorder", "client", "connected_at")
    for place, row in enumerate(facts.slow[: len(COLOURS)]):
        found = by_client[row["recorder"], row["client"], row["connected_at"]]
        waiting = [each["backlog"] for each in found]
        name = plain(f"{row['program'] or 'client'} ({row['client']})")
        _add_line(plot, found, waiting, name, colour(place), "%{y:,}")
    return plot


def _add_line(
    plot: Plot, rows: Rows, values: Sequence[float], name: str, shade: str, hover: str
) -> None:
    """A value for each of the rows, at its start."""
    plot.figure.add_scatter(
        x=[time_label(row["start"]) for row in rows],
        y=values,
        name=name,
        mode="lines" if len(rows) > 1 else "markers",
        line={"color": shade, "width": 2, "shape": "hv"},
        hovertemplate=hover,
    )


def losses(facts: Facts) -> Plot:
    title = "Messages missing from the recording"
    stacked = {"hovermode": None, "barmode": "stack", "bargap": 0}
    plot = plot_over_time("lost-0", title, 280, "messages lost", **stacked)
    by_recorder = grouped(facts.losses, "recorder")
    for place, recorder in enumerate(row["recorder"] for row in facts.gaps_by_recorder):
        rows = by_recorder[recorder,]
        plot.figure.add_bar(
            x=[time_label(row["start"]) for row in rows],
            y=[row["lost"] for row in rows],
            name=plain(recorder),
            width=facts.window_seconds * 1_000,
            offset=0,
            marker_color=colour(place),
            hovertemplate="%{x}: %{y:,} lost",
        )
    unknown = [row for row in facts.losses if row["unknown"]]
    plot.figure.add_scatter(
        x=[time_label(row["start"]) for row in unknown],
        y=[0] * len(unknown),
        mode="text",
        text=["?"] * len(unknown),
        textposition="top center",
        textfont={"color": ALARM, "size": 18},
        name="number unknown",
        hovertemplate="%{x}: lost, nobody knows how many",
    )
    if facts.summary["first"]:
        ends = [time_label(facts.summary[name]) for name in ("first", "last")]
        plot.figure.update_xaxes(range=ends)
    return plot


def unusual(facts: Facts) -> Plot:
    """The most unusual prefixes, one above the other: what is usual, what was, and incidents."""
    windows = Windows(facts)
    wanted = most_unusual(facts.incidents)
    many_hosts = len(facts.summary["hosts"]) > 1
    titles = [plain(name) + (f" on {plain(host)}" if many_hosts else "") for host, name in wanted]
    figure = make_subplots(rows=len(wanted), cols=1, shared_xaxes=True, subplot_titles=titles)
    figure.update_layout(
        template="none",
        title_text="Messages in each window, and incidents",
        showlegend=False,
        margin={"t": 34},
    )
    traffic_of = grouped(facts.unusual_traffic, "host", "prefix")
    incidents_of = grouped(facts.incidents, "host", "prefix")
    for place, key in enumerate(wanted):
        incidents = incidents_of[key]
        usual, spread = incidents[0]["usual"], incidents[0]["spread"]
        subplot = {"row": place + 1, "col": 1}
        figure.add_scatter(
            x=windows.labels,
            y=windows.values(traffic_of[key], lambda row: row["messages"]),
            mode="lines",
            line={"color": colour(place), "width": 1.5, "shape": "hv"},
            name=titles[place],
            hovertemplate="%{x}: %{y:,}<extra></extra>",
            **subplot,
        )
        # Only a subplot that has data can be shaded.
        band = {"layer": "below", "opacity": 0.3, "line_width": 0, **subplot}
        figure.add_hrect(y0=max(0.0, usual - spread), y1=usual + spread, fillcolor=OTHERS, **band)
        for incident in incidents:
            ends = {f"x{n}": time_label(incident[name]) for n, name in enumerate(("start", "end"))}
            figure.add_vrect(**ends, fillcolor=ALARM, **band)
    figure.update_annotations(font_size=12, x=0, xanchor="left")
    figure.update_yaxes(rangemode="tozero", title_text="messages")
    figure.update_xaxes(title_text="time (UTC)", row=len(wanted), col=1)
    return Plot("plot-unusual-0", figure, 90 + 150 * len(wanted))


# -- distributions ---------------------------------------------------------------------------------
def fan_out(facts: Facts) -> Plot:
    counts: dict[int, int] = defaultdict(int)
    for row in facts.fan_out:
        if row["recipients"] is not None:
            counts[min(row["recipients"], RECIPIENTS_MAX)] += row["messages"]
    total = sum(counts.values())
    places = range(max(counts) + 1)
    plot = distribution(
        "flows-1",
        "To how many clients a message went",
        "recipients",
        "messages",
        {f"{n}+" if n == RECIPIENTS_MAX else f"{n}": counts[n] for n in places},
        hovertemplate="%{x} recipients: %{customdata:,} messages (%{y:.3~g} %)<extra></extra>",
        marker_color=[ALARM if place == 0 else COLOURS[0] for place in places],
        text=[
            f"{100 * counts[place] / total:.0f} %" if 200 * counts[place] >= total else ""
            for place in places
        ],
        textposition="outside" if len(places) <= 14 else "none",
        cliponaxis=False,
    )
    plot.figure.update_layout(bargap=0.15)
    return plot


def broker_latency(facts: Facts) -> Plot:
    counts: dict[float, int] = defaultdict(int)
    for row in facts.broker_latency:
        counts[row["bound_us"] or float("inf")] += row["deliveries"]
    bounds = sorted(counts)
    plot = distribution(
        "slow-2",
        "Inside the broker: how long deliveries took",
        "at most",
        "deliveries",
        {_bound(bound, bounds): counts[bound] for bound in bounds},
        hovertemplate="%{x}: %{customdata:,} deliveries (%{y:.3~g} %)<extra></extra>",
        marker_color=COLOURS[2],
    )
    plot.figure.update_layout(bargap=0.1)
    return plot


def _bound(bound_us: float, bounds: Sequence[float]) -> str:
    if bound_us == float("inf"):
        return f"over {microseconds(bounds[-2])}" if len(bounds) > 1 else "any"
    return microseconds(bound_us)
