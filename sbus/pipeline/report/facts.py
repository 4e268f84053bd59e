"""What the report shows: the results of the jobs, as much of each as a page can hold."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns
from sbus.pipeline.jobs.anomalies import anomalies
from sbus.pipeline.jobs.clients import CLIENT, slow_consumers, users
from sbus.pipeline.jobs.flows import deliveries, fan_out, receivers, senders
from sbus.pipeline.jobs.gaps import losses
from sbus.pipeline.jobs.latency import broker_latency, is_probe, latency
from sbus.pipeline.jobs.traffic import hot_keys, traffic
from sbus.pipeline.spark.selection import Table

Row = dict[str, Any]
Rows = list[Row]

WINDOWS_MAX = 120
"""As many steps as a plot can show."""
WINDOW_SECONDS = (
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1_800.0),
    *(3_600.0, 7_200.0, 21_600.0, 86_400.0, 604_800.0, 2_592_000.0),
)
PREFIXES_MAX = 7
"""With a colour of their own; the others are added up."""
SLOW_MAX = 7
KEYS_MAX = 15
FLOWS_MAX = 400
ROWS_MAX = 12
INCIDENTS_MAX = 200
UNUSUAL_PREFIXES_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    window_seconds: float
    depth: int
    summary: Row
    """messages, bytes, keys, publishers (null: unknown), deliveries (null: unknown), hosts,
    recorders, first, last (null: no messages), gaps, lost, unknown_gaps, seconds."""
    traffic: Rows
    """start, prefix (null for all others together), messages."""
    prefixes: Rows
    """prefix, messages, bytes: the busiest; a last row without a name for all others."""
    hot_keys: Rows
    senders: Rows
    receivers: Rows
    fan_out: Rows
    unheard: Rows
    """The prefixes with messages that nobody received, as in `flows.deliveries`. Both are without
    the recorder's own probes, which no client is to receive."""
    users: Rows
    slow: Rows
    slow_count: int
    backlogs: Rows
    """recorder, incarnation, client, connected_at, start, backlog (the largest in a window) of slow
    clients."""
    latency: Rows
    broker_latency: Rows
    losses: Rows
    """recorder, since, until, gaps, lost, unknown: gaps in neighbouring windows are one loss."""
    incidents: Rows
    unusual_traffic: Rows
    """host, prefix, start, messages of the prefixes with the highest scores."""
    events: Rows
    """event, times, first, last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How finely to look; without `window_seconds` the length of the recording determines it."""

    depth: int = 2
    separator: str = columns.SEPARATOR
    window_seconds: float | None = None


def gather(
    read: Callable[[Table], DataFrame],
    scope: Scope,
    step: Callable[[str], None] = lambda what: None,
) -> Facts:
    """Run all jobs; `step` is told what is being looked at."""
    step("reading the recording")
    # They stay in memory until Spark ends, but without the payloads, which only probes need.
    tables = {name: read(name) for name in get_args(Table)}
    payload = F.when(is_probe(), F.col("value"))
    tables["messages"] = tables["messages"].withColumn("value", payload)
    tables = {name: table.persist() for name, table in tables.items()}
    summary = summarize(tables["messages"])
    window_seconds = scope.window_seconds or suitable_window(summary["seconds"])
    jobs = _Jobs(**tables, scope=scope, window_seconds=window_seconds)
    found: Row = {}
    for what, answer in (
        ("traffic", jobs.traffic),
        ("who sends what to whom", jobs.flows),
        ("what is slow", jobs.slow),
        ("what was lost", jobs.lost),
        ("what is unusual", jobs.unusual),
    ):
        step(what)
        found |= answer()
    return Facts(window_seconds=window_seconds, depth=scope.depth, summary=summary, **found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jobs:
    """Runs the jobs for a section of the page; each method returns fields of `Facts`."""

    messages: DataFrame
    clients: DataFrame
    events: DataFrame
    scope: Scope
    window_seconds: float

    @property
    def by_prefix(self) -> dict[str, Any]:
        return {"depth": self.scope.depth, "separator": self.scope.separator}

    def traffic(self) -> Row:
        parts = traffic(
            self.messages, **self.by_prefix, window_seconds=self.window_seconds
        ).persist()
        try:
            prefixes, names = _prefixes(parts)
            over_time = _folded(parts, names)
        finally:
            parts.unpersist()
        keys = collect(hot_keys(self.messages, top=KEYS_MAX))
        return {"traffic": over_time, "prefixes": prefixes, "hot_keys": keys}

    def flows(self) -> Row:
        sent = senders(self.messages, **self.by_prefix)
        asked = receivers(self.messages, self.events, **self.by_prefix)
        others = self.messages.where(~is_probe())
        unheard = deliveries(others, **self.by_prefix).where("unheard > 0")
        return {
            "senders": collect(sent.limit(FLOWS_MAX)),
            "receivers": collect(asked.limit(FLOWS_MAX)),
            "fan_out": collect(fan_out(others)),
            "unheard": collect(unheard.orderBy(F.desc("unheard"), "prefix").limit(ROWS_MAX)),
            "users": collect(users(self.messages, self.clients, self.events).limit(ROWS_MAX)),
        }

    def slow(self) -> Row:
        slow = collect(slow_consumers(self.clients))
        return {
            "slow": slow[:ROWS_MAX],
            "slow_count": len(slow),
            "backlogs": _backlogs(self.clients, slow[:SLOW_MAX], self.window_seconds),
            "latency": collect(latency(self.messages, window_seconds=self.window_seconds)),
            "broker_latency": collect(broker_latency(self.events)),
        }

    def lost(self) -> Row:
        events = self.events.groupBy("event").agg(
            F.count("*").alias("times"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
        )
        by_window = collect(losses(self.messages, window_seconds=self.window_seconds))
        return {
            "losses": joined_losses(by_window, self.window_seconds),
            "events": collect(events.orderBy("event")),
        }

    def unusual(self) -> Row:
        found = anomalies(self.messages, **self.by_prefix, window_seconds=self.window_seconds)
        incidents = collect(found.limit(INCIDENTS_MAX))
        traffic = _unusual_traffic(self.messages, incidents, self.scope, self.window_seconds)
        return {"incidents": incidents, "unusual_traffic": traffic}


def suitable_window(seconds: float) -> float:
    """The shortest of `WINDOW_SECONDS` that gives at most `WINDOWS_MAX` windows."""
    fitting = [window for window in WINDOW_SECONDS if seconds / window <= WINDOWS_MAX]
    return fitting[0] if fitting else WINDOW_SECONDS[-1]


def collect(result: DataFrame) -> Rows:
    """Times are UTC."""
    rows: Rows = result.toArrow().to_pylist()
    return rows


def summarize(messages: DataFrame) -> Row:
    said = columns.is_message()
    (row,) = collect(
        messages.agg(
            F.count_if(said).alias("messages"),
            F.coalesce(F.sum(F.when(said, columns.payload_bytes())), F.lit(0)).alias("bytes"),
            F.count_distinct(F.when(said, F.col("key"))).alias("keys"),
            columns.publishers().alias("publishers"),
            F.sum("recipients").alias("deliveries"),
            F.sort_array(F.collect_set("host")).alias("hosts"),
            F.count_distinct("recorder").alias("recorders"),
            F.min(F.when(said, F.col("timestamp"))).alias("first"),
            F.max(F.when(said, F.col("timestamp"))).alias("last"),
            F.count_if(columns.is_gap()).alias("gaps"),
            F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
            F.count_if(columns.is_gap() & F.col("lost").isNull()).alias("unknown_gaps"),
        )
    )
    has_times = row["first"] is not None
    return row | {"seconds": (row["last"] - row["first"]).total_seconds() if has_times else 0.0}


def _prefixes(parts: DataFrame) -> tuple[Rows, list[str]]:
    """The busiest, followed by the sum of the others, if there are any; and their names."""
    sums = (F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    by_prefix = parts.groupBy("prefix").agg(*sums)
    found = collect(by_prefix.orderBy(F.desc("messages"), "prefix").limit(PREFIXES_MAX))
    names = [row["prefix"] for row in found]
    (others,) = collect(
        by_prefix.where(~F.col("prefix").isin(names)).agg(*sums, F.count("*").alias("prefixes"))
    )
    return found + ([{"prefix": None, **others}] if others["prefixes"] else []), names


def _folded(parts: DataFrame, names: list[str]) -> Rows:
    """Messages by window and prefix, null for all prefixes that are not among `names`."""
    named = F.when(F.col("prefix").isin(names), F.col("prefix"))
    return collect(
        parts.groupBy("start", named.alias("prefix"))
        .agg(F.sum("messages").alias("messages"))
        .orderBy("start", "prefix")
    )


def _backlogs(clients: DataFrame, slow: Rows, window_seconds: float) -> Rows:
    if not slow:
        return []
    numbers = [row["client"] for row in slow]
    found = collect(
        clients.where(F.col("client").isin(numbers) & F.col("backlog").isNotNull())
        .groupBy(*CLIENT, columns.window_start(window_seconds).alias("start"))
        .agg(F.max("backlog").alias("backlog"))
        .orderBy("start")
    )
    wanted = {tuple(row[name] for name in CLIENT) for row in slow}
    return [row for row in found if tuple(row[name] for name in CLIENT) in wanted]


def joined_losses(by_window: Rows, window_seconds: float) -> Rows:
    """What a recording misses in neighbouring windows is one loss."""
    found: Rows = []
    latest: dict[tuple[str, str], Row] = {}
    for row in by_window:
        recording = row["recorder"], row["incarnation"]
        loss = latest.get(recording)
        if loss is None or loss["start"] + timedelta(seconds=window_seconds) < row["start"]:
            loss = latest[recording] = {**row, "since": row["since"] or row["until"]}
            found.append(loss)
        else:
            loss |= {"start": row["start"], "until": row["until"]}
            loss |= {name: loss[name] + row[name] for name in ("gaps", "lost", "unknown")}
    return found


def worst_by_start(rows: Rows) -> Rows:
    """The slowest recorder's row of each window of `latency`, without windows that have no
    figure."""
    worst: dict[datetime, Row] = {}
    for row in rows:
        known = worst.get(row["start"])
        if row["max_ms"] is not None and (known is None or row["max_ms"] > known["max_ms"]):
            worst[row["start"]] = row
    return [worst[start] for start in sorted(worst)]


def end_to_end(rows: Rows) -> Row | None:
    """median_ms, max_ms of the probes, as `latency` has them; None without a figure."""
    worst = worst_by_start(rows)
    if not worst:
        return None
    medians = sorted(row["p50_ms"] for row in worst)
    return {"median_ms": medians[len(medians) // 2], "max_ms": max(r["max_ms"] for r in worst)}


def most_unusual(incidents: Rows) -> list[tuple[str, str]]:
    """Host and prefix of those with the highest scores, highest first."""
    found = dict.fromkeys((row["host"], row["prefix"]) for row in incidents)
    return list(found)[:UNUSUAL_PREFIXES_MAX]


def _unusual_traffic(
    messages: DataFrame, incidents: Rows, scope: Scope, window_seconds: float
) -> Rows:
    wanted = most_unusual(incidents)
    if not wanted:
        return []
    prefix = columns.prefix(scope.depth, scope.separator)
    found = collect(
        messages.where(columns.is_message() & prefix.isin([name for _, name in wanted]))
        .groupBy(
            "host", prefix.alias("prefix"), columns.window_start(window_seconds).alias("start")
        )
        .agg(F.count("*").alias("messages"))
        .orderBy("start")
    )
    return [row for row in found if (row["host"], row["prefix"]) in set(wanted)]
