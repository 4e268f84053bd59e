"""What `stats`, `workers` and `version` show to people.

Lines out of answers, for a width; prints nothing and asks nobody.
"""

from datetime import datetime

from rich.text import Text

from sbus.cli.terminal.tables import GAP, TITLE_STYLE, Cell, Column, fit, layout, shorten, text
from sbus.cli.terminal.units import (
    UNKNOWN,
    by_name,
    count,
    counted,
    duration,
    mean,
    percent,
    quantile,
    size,
)
from sbus.protocol.admin_results import (
    Fill,
    Rates,
    StatsResult,
    Traffic,
    VersionResult,
    WorkerReport,
)

BAR_CELLS = 20
GOOD, WARNING, BAD = "green", "yellow", "red"
FILL_WARNING, FILL_BAD = 0.7, 0.9
SILENCE_WARNING_SECONDS = 2.5
"""A worker beats about once in a second."""
LABEL_CELLS = 13


def stats_lines(stats: StatsResult, width: int | None) -> list[Text]:
    """Everything: what there is, the ledger, what went wrong, how full, and each worker."""
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


def _summary(stats: StatsResult, width: int | None) -> list[Text]:
    state = f"up {duration(stats.uptime_seconds)}"
    if stats.draining:
        state += ", draining: nobody is let in any more"
    room = None if width is None else max(10, width - len(state) - len(GAP))
    address = stats.address if room is None else shorten(stats.address, room)
    clients = f"{counted(stats.clients, 'client')} of {counted(stats.users, 'user')}"
    subscriptions = counted(stats.traffic.subscriptions, "subscription")
    stalls = f"stalls: {count(stats.stalled_clients)} now, {count(stats.traffic.stalls)} in all"
    first = text(f"{address}{GAP}{state}")
    first.stylize(TITLE_STYLE, 0, len(address))
    return [fit(first, width), fit(text(f"{clients}, {subscriptions}; {stalls}"), width)]


def _ledger(traffic: Traffic, rates: Rates, width: int | None) -> list[Text]:
    """accepted = delivered + discarded + undelivered + backlog, and how fast."""
    known = rates.window_seconds > 0

    def rate(messages: float, number_bytes: float | None = None) -> tuple[str, str]:
        if not known:
            return "", ""
        return count(messages), "" if number_bytes is None else size(number_bytes)

    def row(
        name: str, messages: int, number_bytes: int, per_second: tuple[str, str] = ("", "")
    ) -> tuple[str, ...]:
        return name, count(messages), size(number_bytes), *per_second

    columns = [
        Column("LEDGER", right=False),
        *(Column(title) for title in ("MESSAGES", "BYTES", "MESSAGES/S", "BYTES/S")),
    ]
    rows = [
        row(
            "published",
            traffic.messages_in,
            traffic.bytes_in,
            rate(rates.messages_in_per_second, rates.bytes_in_per_second),
        ),
        row("accepted", traffic.accepted, traffic.accepted_bytes),
        row(
            "delivered",
            traffic.delivered,
            traffic.delivered_bytes,
            rate(rates.delivered_per_second, rates.delivered_bytes_per_second),
        ),
        row(
            "discarded",
            sum(traffic.discarded.values()),
            traffic.discarded_bytes,
            rate(rates.discarded_per_second),
        ),
        row("undelivered", traffic.undelivered, traffic.undelivered_bytes),
        row("backlog", traffic.backlog, traffic.backlog_bytes),
    ]
    return layout(columns, rows, width)


def _facts(stats: StatsResult, width: int | None) -> list[Text]:
    traffic = stats.traffic
    refused = stats.connections_refused
    latency = traffic.latency
    facts = [
        _fact("discarded", by_name(traffic.discarded), _warn_if(any(traffic.discarded.values()))),
        _fact("refused", by_name(traffic.refused)),
        _fact(
            "connections",
            f"{count(stats.connections_accepted)} accepted, refused: {by_name(refused)}",
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
    ]
    return [fit(line, width) for line in facts]


def _hits(traffic: Traffic) -> str:
    return percent(traffic.route_lookups - traffic.route_misses, traffic.route_lookups)


def _warn_if(condition: bool) -> str:
    return WARNING if condition else ""


def _fact(name: str, words: str, style: str = "") -> Text:
    line = text(f"{name:<{LABEL_CELLS}}")
    return line.append_text(text(words, style))


def _fill(name: str, fill: Fill | None, width: int | None) -> Text:
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
    workers: list[WorkerReport], width: int | None, *, details: bool = True
) -> list[Text]:
    """One line for each worker; without `details`, what is about its process is left out."""
    columns = [
        Column("WORKER"),
        Column("PID"),
        Column("STATE", right=False),
        *([Column("UP", rank=3), Column("DEATHS"), Column("SILENT", rank=4)] if details else []),
        Column("CPU", rank=1),
        Column("MEMORY"),
        Column("CLIENTS"),
        Column("IN/S"),
        Column("OUT/S"),
        Column("BACKLOG"),
        *([] if details else [Column("ROUTES", rank=2)]),
        Column("P99", rank=5),
    ]
    return layout(columns, [_worker(worker, details) for worker in workers], width)


def _worker(worker: WorkerReport, details: bool) -> list[str | Cell]:
    rates, traffic = worker.rates, worker.traffic
    known = rates.window_seconds > 0
    process: list[str | Cell] = []
    if details:
        silent = worker.silence_seconds >= SILENCE_WARNING_SECONDS
        process = [
            duration(_age(worker)) if worker.pid else UNKNOWN,
            Cell(count(worker.deaths), _warn_if(worker.deaths > 0)),
            Cell(duration(worker.silence_seconds), _warn_if(silent)),
        ]
    return [
        str(worker.worker),
        str(worker.pid or UNKNOWN),
        Cell(worker.state, _STATE_STYLES[worker.state]),
        *process,
        duration(worker.cpu_seconds) if worker.pid else UNKNOWN,
        size(worker.memory_bytes) if worker.pid else UNKNOWN,
        count(worker.clients),
        count(rates.messages_in_per_second) if known else UNKNOWN,
        count(rates.delivered_per_second) if known else UNKNOWN,
        count(traffic.backlog),
        *([] if details else [_hits(traffic)]),
        quantile(traffic.latency, 0.99),
    ]


def _age(worker: WorkerReport) -> float:
    return max(0.0, datetime.now().timestamp() - worker.started_at)


# -- version ---------------------------------------------------------------------------------------
def version_lines(version: VersionResult, width: int | None) -> list[Text]:
    """A line for each fact."""
    since = datetime.fromtimestamp(version.started_at).astimezone()
    facts = [
        _fact("sbusd", version.version),
        _fact("protocol", str(version.protocol)),
        _fact("python", version.python),
        _fact("address", version.address),
        _fact("dialect", version.dialect),
        _fact("workers", str(version.workers)),
        _fact("pid", str(version.pid)),
        _fact("started", since.isoformat(" ", "seconds")),
    ]
    return [fit(line, width) for line in facts]
