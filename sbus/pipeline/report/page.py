"""The page: one file with everything in it, from `templates/`.

No request leaves it: it contains the style, the data and Bokeh's code, compressed. Without scripts
the tables and sentences remain. Keys and names are other people's text: the templates escape what
they are given, and the plots' JSON cannot end its element, because every `<` is written as an
escape.
"""

import base64
import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader, StrictUndefined

import sbus
from sbus.cli.terminal import units
from sbus.pipeline.report.facts import Facts, Row, Rows, end_to_end
from sbus.pipeline.report.figures import COLOURS, OTHERS, Plot, draw, shortened, unusual
from sbus.protocol.text import one_line

INCIDENTS_SHOWN = 12
LOSSES_SHOWN = 12
RECIPIENTS_MAX = 24
"""Of the last row, which also stands for more."""
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


def render(
    facts: Facts, *, title: str, comparison: Row | None = None, now: datetime | None = None
) -> str:
    """The whole page; `comparison` is of `compare`, `now` is when the page was made."""
    plots = draw(facts)
    incidents = unusual(facts) if facts.incidents else []
    drawn = [plot for plot in (*incidents, *plots.values()) if plot is not None]
    events = {row["event"]: row for row in facts.events}
    bad = [{**events[name], "text": text} for name, text in BAD_EVENTS.items() if name in events]
    page = _environment(facts).get_template("page.html")
    return page.render(
        title=title,
        version=sbus.__version__,
        now=now or datetime.now(UTC),
        facts=facts,
        comparison=comparison,
        recipients=_recipients(facts.fan_out),
        broker_latency=_broker_latency(facts.broker_latency),
        probes=end_to_end(facts.latency),
        publishing_users=len({(row["host"], row["uid"]) for row in facts.senders}),
        unheard=sum(row["messages"] for row in facts.fan_out if row["recipients"] == 0),
        bad_events=sorted(bad, key=lambda row: row["times"], reverse=True),
        losses=sorted(facts.losses, key=lambda row: row["lost"], reverse=True)[:LOSSES_SHOWN],
        incidents=facts.incidents[:INCIDENTS_SHOWN],
        plots=plots,
        incident_plots=incidents,
        figures_json=_figures_json(drawn),
        bokeh=_packed_bokeh(),
    )


def _environment(facts: Facts) -> Environment:
    first, last = facts.summary["first"], facts.summary["last"]
    is_one_day = first is None or first.date() == last.date()
    time_form = "%H:%M:%S" if is_one_day else "%-d %b %H:%M:%S"
    environment = Environment(
        loader=PackageLoader("sbus.pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["colours"] = (*COLOURS, OTHERS)
    environment.filters.update(
        change=lambda row: _change(row["before"], row["now"]),
        count=units.count,
        counted=units.counted,
        date_time=lambda when, form="%-d %b %Y, %H:%M:%S": when.strftime(form),
        duration=units.duration,
        milliseconds=lambda value: units.microseconds(value * 1000),
        one_line=one_line,
        share=lambda part, whole: f"{100 * part / whole:.1f}\N{NO-BREAK SPACE}%" if whole else "",
        shortened=shortened,
        size=units.size,
        thousands=lambda value, digits=0: f"{value:,.{digits}f}",
        time=lambda when: when.strftime(time_form),
    )
    return environment


def _change(before: float | None, now: float | None) -> str:
    if before is None or now is None:
        return ""
    if not before or not now:
        return "new" if now else "gone" if before else ""
    percent = round(100 * (now / before - 1))
    return f"{percent:+,} %" if percent else ""


def _recipients(fan_out: Rows) -> dict[str, int]:
    """How many messages went to so many clients, if that is known."""
    counts: Counter[int] = Counter()
    for row in fan_out:
        if row["recipients"] is not None:
            counts[min(row["recipients"], RECIPIENTS_MAX)] += row["messages"]
    places = range(max(counts) + 1) if counts else ()
    return {f"{n}+" if n == RECIPIENTS_MAX else f"{n}": counts[n] for n in places}


def _broker_latency(rows: Rows) -> dict[str, int]:
    """How many deliveries took at most so long, and more than the bound before."""
    counts: Counter[float] = Counter()
    for row in rows:
        counts[row["bound_us"] or math.inf] += row["deliveries"]
    return {
        "more" if bound == math.inf else units.microseconds(bound): counts[bound]
        for bound in sorted(counts)
    }


def _figures_json(plots: Sequence[Plot]) -> str:
    """Empty without plots."""
    if not plots:
        return ""
    items = [json_item(plot.figure, ID(plot.id)) for plot in plots]
    return json.dumps(items, separators=(",", ":")).replace("<", "\\u003c")


def _packed_bokeh() -> str:
    """Its code, as `plots.js` unpacks it: a third of its size."""
    code = "".join(Resources("inline", components=["bokeh"]).js_raw)
    return base64.b64encode(gzip.compress(code.encode(), mtime=0)).decode()
