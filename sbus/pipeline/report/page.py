"""The page: one file with everything in it, from `templates/`.

No request leaves it: it contains the style, the data and plotly's code. Without scripts the tables
and sentences remain. Keys and names are other people's text: the templates escape what they are
given, and the plots' JSON cannot end its element, because every `<` is written as an escape.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

import sbus
from sbus.cli.terminal import units
from sbus.pipeline.report.facts import Facts
from sbus.pipeline.report.figures import draw, worst_by_start
from sbus.pipeline.report.plot import COLOURS, OTHERS, Plot, shortened
from sbus.protocol.text import one_line

INCIDENTS_SHOWN = 12
FINDINGS_MAX = 3
"""Incidents among the findings at the top."""
BAD_EVENTS = {
    "client-expelled": "clients disconnected for misbehaviour",
    "client-kicked": "clients disconnected by an administrator",
    "client-stalled": "times a client had no room, and its publishers waited",
    "connection-refused": "connections refused",
    "access-denied": "packets refused by access rules",
    "packet-refused": "packets refused",
    "messages-discarded": "reports of discarded messages",
    "limit-reached": "limits reached",
    "worker-died": "workers died",
    "worker-silent": "workers killed for their silence",
}


def render(facts: Facts, *, title: str, now: datetime | None = None) -> str:
    """The whole page; `now` is when it was made."""
    plots = draw(facts)
    counts = {row["event"]: row["times"] for row in facts.events}
    bad = [(text, counts[event]) for event, text in BAD_EVENTS.items() if event in counts]
    page = _environment().get_template("page.html")
    return page.render(
        title=title,
        version=sbus.__version__,
        now=now or datetime.now(UTC),
        facts=facts,
        probes=_probes(facts),
        publishing_users=len({(row["host"], row["uid"]) for row in facts.senders}),
        unheard=sum(row["messages"] for row in facts.fan_out if row["recipients"] == 0),
        bad_events=sorted(bad, key=lambda row: row[1], reverse=True),
        incidents_shown=INCIDENTS_SHOWN,
        findings_max=FINDINGS_MAX,
        plots=plots,
        figures_json=_figures_json([plot for plot in plots.values() if plot is not None]),
        plotly=get_plotlyjs(),
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sbus.pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["colours"] = (*COLOURS, OTHERS)
    environment.filters.update(
        count=units.count,
        counted=units.counted,
        date_time=lambda when, form="%-d %b %Y, %H:%M:%S": when.strftime(form),
        duration=units.duration,
        milliseconds=lambda value: units.microseconds(value * 1000),
        one_line=one_line,
        share=lambda part, whole: f"{100 * part / whole:.1f} %" if whole else "",
        shortened=shortened,
        size=units.size,
        thousands=lambda value, digits=0: f"{value:,.{digits}f}",
        time=lambda when: when.strftime("%H:%M:%S"),
    )
    return environment


def _probes(facts: Facts) -> dict[str, Any] | None:
    rows = worst_by_start(facts.latency)
    if not rows:
        return None
    medians = sorted(row["p50_ms"] for row in rows)
    return {"median_ms": medians[len(medians) // 2], "max_ms": max(row["max_ms"] for row in rows)}


def _figures_json(plots: Sequence[Plot]) -> str:
    """Empty without plots."""
    if not plots:
        return ""
    figures = {plot.id: json.loads(plot.figure.to_json()) for plot in plots}
    return json.dumps(figures, separators=(",", ":")).replace("<", "\\u003c")
