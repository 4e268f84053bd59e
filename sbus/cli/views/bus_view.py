"""The output of `stats`, `workers`, `version`, `reload` and `drain` for people."""

from collections.abc import Callable, Sequence
from datetime import datetime

from rich.text import Text

from sbus.cli.terminal.tables import (
    GAP,
    TITLE_STYLE,
    Cell,
    Column,
    Field,
    fit,
    layout,
    paragraph,
    shorten,
    table,
    text,
)
from sbus.cli.terminal.units import (
    UNKNOWN,
    by_name,
    count,
    counted,
    duration,
    enumerated,
    mean,
    microseconds,
    percent,
    quantile,
    size,
)
from sbus.protocol import admin_results as results

BAR_CELLS = 20
GOOD, WARNING, BAD = "green", "yellow", "red"
FILL_WARNING, FILL_BAD = 0.7, 0.9
SILENCE_WARNING_SECONDS = 2.5
"""A worker's heartbeat is due about once a second."""
LABEL_CELLS = 13


def stats_lines(stats: results.StatsResult, width: int | None) -> list[Text]:
    """A summary, the ledger of messages, other figures, and each worker."""
    blank = Text()
    return [
        *_summary(stats, width),
        blank,
        *_ledger(stats.traffic, stats.rates, width),
        blank,
        *_facts(stats, width),
        blank,
        *workers_lines(stats.workers, width, details=False),
    ]


def _summary(stats: results.StatsResult, width: int | None) -> list[Text]:
    state = f"up {duration(stats.uptime_seconds)}, step: {stats.step}"
    if stats.draining:
        state += ", draining: no more clients are accepted"
    if stats.missing_names:
        state += f", {counted(stats.missing_names, 'configured name')} not found"
    room = None if width is None else max(10, width - len(state) - len(GAP))
    address = stats.address if room is None else shorten(stats.address, room)
    clients = f"{counted(stats.clients, 'client')} of {counted(stats.users, 'user')}"
    subscriptions = counted(stats.traffic.subscriptions, "subscription")
    stalls = f"stalls: {count(stats.stalled_clients)} now, {count(stats.traffic.stalls)} in all"
    if stats.traffic.slow_sends:
        stalls += f"; slow sends: {count(stats.traffic.slow_sends)}"
    first = text(f"{address}{GAP}{state}")
    first.stylize(TITLE_STYLE, 0, len(address))
    return [fit(first, width), fit(text(f"{clients}, {subscriptions}; {stalls}"), width)]


_LEDGER = {
    "published": ("messages_in", "bytes_in"),
    "accepted": ("accepted", "accepted_bytes"),
    "delivered": ("delivered", "delivered_bytes"),
    "discarded": ("discarded", "discarded_bytes"),
    "replaced": ("replaced", "replaced_bytes"),
    "undelivered": ("undelivered", "undelivered_bytes"),
    "backlog": ("backlog", "backlog_bytes"),
}
"""The fields of each row; accepted = delivered + discarded + replaced + undelivered + backlog."""


def _ledger(traffic: results.Traffic, rates: results.Rates, width: int | None) -> list[Text]:
    """Messages and bytes, and the rates of some of them."""

    def rate(field: str, shown: Callable[[float], str]) -> str:
        per_second = getattr(rates, f"{field}_per_second", None)
        return "" if per_second is None or not rates.window_seconds else shown(per_second)

    rows = []
    for name, (messages, of_bytes) in _LEDGER.items():
        totals = [count(results.total(traffic, messages)), size(getattr(traffic, of_bytes))]
        rows.append([name, *totals, rate(messages, count), rate(of_bytes, size)])
    titles = ("MESSAGES", "BYTES", "MESSAGES/S", "BYTES/S")
    return layout([Column("LEDGER", right=False), *map(Column, titles)], rows, width)


def _facts(stats: results.StatsResult, width: int | None) -> list[Text]:
    traffic = stats.traffic
    refused = stats.connections_refused
    latency = traffic.latency
    facts = [
        _fact("discarded", by_name(traffic.discarded), _warn_if(any(traffic.discarded.values()))),
        _fact("refused", by_name(traffic.refused)),
        _fact(
            "connections",
            f"{count(stats.connections_accepted)} accepted, {count(stats.stored_clients)} stored, "
            f"refused: {by_name(refused)}",
        ),
        _fact(
            "routes",
            f"{_hits(traffic)} of {counted(traffic.route_lookups, 'look-up')} in the cache",
        ),
        _fact(
            "latency",
            f"p50 {quantile(latency, 0.5)}, p99 {quantile(latency, 0.99)}, "
            f"max {quantile(latency, 1)}, mean {mean(latency)}",
        ),
        _fill("log", stats.log, width),
        _fill("table", stats.table, width),
        *_operations("longest", {it: it.seconds for it in stats.longest_operations}, width),
        *_operations("  CPU time", {it: it.cpu_seconds for it in stats.longest_operations}, width),
    ]
    return [fit(line, width) for line in facts]


def _operations(
    name: str, seconds: dict[results.LongestOperation, float], width: int | None
) -> list[Text]:
    """The longest operation of each kind over all processes, the longest first."""
    longest: dict[str, float] = {}
    for it in sorted(seconds, key=seconds.__getitem__):
        longest[it.operation] = seconds[it]
    kinds = sorted(longest, key=longest.__getitem__, reverse=True)
    shown = ", ".join(f"{kind} {microseconds(longest[kind] * 1e6)}" for kind in kinds)
    return [
        _fact("" if number else name, line.plain)
        for number, line in enumerate(paragraph(shown, width and width - LABEL_CELLS))
    ]


def _hits(traffic: results.Traffic) -> str:
    return percent(traffic.route_lookups - traffic.route_misses, traffic.route_lookups)


def _warn_if(condition: bool) -> str:
    return WARNING if condition else ""


def _fact(name: str, words: str, style: str = "") -> Text:
    line = text(f"{name:<{LABEL_CELLS}}")
    return line.append_text(text(words, style))


def _fill(name: str, fill: results.Fill | None, width: int | None) -> Text:
    if fill is None:
        return _fact(name, "in use for too long to look")
    part = fill.used_bytes / max(1, fill.size_bytes)
    shown = f"{percent(fill.used_bytes, fill.size_bytes):>5} of {size(fill.size_bytes)}"
    full, empty = ("#", ".") if width is None else ("█", "░")
    filled = min(BAR_CELLS, round(part * BAR_CELLS))
    line = _fact(name, full * filled, _fill_style(part))
    return line.append(empty * (BAR_CELLS - filled), style="dim").append(f" {shown}")


def _fill_style(part: float) -> str:
    if part >= FILL_BAD:
        return BAD
    return WARNING if part >= FILL_WARNING else GOOD


# -- workers ---------------------------------------------------------------------------------------
_STATE_STYLES = {"serving": "", "starting": WARNING, "silent": BAD}


def workers_lines(
    workers: list[results.WorkerReport], width: int | None, *, details: bool = True
) -> list[Text]:
    """One line for each worker, with `details` of its process or with its route cache."""
    process: Sequence[Field[results.WorkerReport]] = (
        Field("UP", _uptime, rank=3),
        Field("DEATHS", _deaths),
        Field("SILENT", _silence, rank=4),
    )
    routes: Field[results.WorkerReport] = Field("ROUTES", lambda one: _hits(one.traffic), rank=2)
    fields: Sequence[Field[results.WorkerReport]] = (
        Field("WORKER", lambda one: str(one.worker)),
        Field("PID", lambda one: str(one.pid or UNKNOWN)),
        Field("STATE", lambda one: Cell(one.state, _STATE_STYLES[one.state]), right=False),
        *(process if details else ()),
        Field("CPU", lambda one: duration(one.cpu_seconds) if one.pid else UNKNOWN, rank=1),
        Field("BUSY", lambda one: f"{one.busy_share:.0%}" if one.pid else UNKNOWN, rank=6),
        Field("MEMORY", lambda one: size(one.memory_bytes) if one.pid else UNKNOWN),
        Field("CLIENTS", lambda one: count(one.clients)),
        Field("IN/S", lambda one: _rate(one.rates, "messages_in_per_second")),
        Field("OUT/S", lambda one: _rate(one.rates, "delivered_per_second")),
        Field("BACKLOG", lambda one: count(one.traffic.backlog)),
        *(() if details else (routes,)),
        Field("P99", lambda one: quantile(one.traffic.latency, 0.99), rank=5),
    )
    return table(fields, workers, width)


def _uptime(worker: results.WorkerReport) -> str:
    up_seconds = max(0.0, datetime.now().timestamp() - worker.started_at)
    return duration(up_seconds) if worker.pid else UNKNOWN


def _deaths(worker: results.WorkerReport) -> Cell:
    return Cell(count(worker.deaths), _warn_if(worker.deaths > 0))


def _silence(worker: results.WorkerReport) -> Cell:
    is_long = worker.silence_seconds >= SILENCE_WARNING_SECONDS
    return Cell(duration(worker.silence_seconds), _warn_if(is_long))


def _rate(rates: results.Rates, name: str) -> str:
    return count(getattr(rates, name)) if rates.window_seconds > 0 else UNKNOWN


# -- version ---------------------------------------------------------------------------------------
def version_lines(version: results.VersionResult, width: int | None) -> list[Text]:
    """One fact on each line."""
    started = datetime.fromtimestamp(version.started_at).astimezone()
    facts = {
        "sbusd": version.version,
        "protocol": version.protocol,
        "python": version.python,
        "step": version.step,
        "address": version.address,
        "dialect": version.dialect,
        "workers": version.workers,
        "pid": version.pid,
        "started": started.isoformat(" ", "seconds"),
    }
    return [fit(_fact(name, str(value)), width) for name, value in facts.items()]


# -- reload and drain ------------------------------------------------------------------------------
def reload_lines(result: results.ReloadResult, width: int | None) -> list[Text]:
    """Which settings changed, and which wait for a restart."""
    applied = enumerated(result.applied) if result.applied else "nothing new"
    lines = paragraph(f"in force now: {applied}", width)
    if result.needs_restart:
        waiting = enumerated(result.needs_restart)
        lines += paragraph(f"unchanged until a restart or an upgrade: {waiting}", width)
    return lines


def upgrade_lines(result: results.UpgradeResult, width: int | None) -> list[Text]:
    """Who has taken over the bus, which serves or is about to."""
    clients, pause_ms = counted(result.clients, "client"), result.pause_seconds * 1_000
    who = f"process {result.pid}, version {result.version}, has taken over"
    text = f"{who} {clients}; the pause took {pause_ms:.0f} ms"
    return paragraph(text, width)


def drain_lines(result: results.DrainResult, width: int | None) -> list[Text]:
    """How many clients are left."""
    return paragraph(f"{counted(result.clients, 'client')} left", width)
