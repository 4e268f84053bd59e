"""What the report goes by: the answers of the jobs, as much of each as a page can hold.

Every answer is a list of rows, each a dict. Knows nothing of HTML or plots.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns
from sbus.pipeline.jobs.anomalies import anomalies
from sbus.pipeline.jobs.counters import CLIENT
from sbus.pipeline.jobs.fan_out import deliveries, fan_out
from sbus.pipeline.jobs.flows import receivers, senders
from sbus.pipeline.jobs.gaps import gaps, losses
from sbus.pipeline.jobs.hot_keys import hot_keys
from sbus.pipeline.jobs.latency import broker_latency, latency
from sbus.pipeline.jobs.slow_consumers import slow_consumers
from sbus.pipeline.jobs.traffic import traffic
from sbus.pipeline.jobs.users import users
from sbus.pipeline.tables import Table

Row = dict[str, Any]
Rows = list[Row]

WINDOWS_MAX = 120
"""As many as a plot can show as steps."""
WINDOW_SECONDS = (
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1_800.0),
    *(3_600.0, 7_200.0, 21_600.0, 86_400.0, 604_800.0, 2_592_000.0),
)
PREFIXES_MAX = 7
"""That have a colour of their own; the others are added up."""
SLOW_MAX = 7
KEYS_MAX = 15
FLOWS_MAX = 400
ROWS_MAX = 12
STRANGE_MAX = 200
STRANGE_PREFIXES_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    window_seconds: float
    separator: str
    depth: int
    summary: Row
    """messages, bytes, keys, publishers (null: unknown), deliveries (null: unknown), hosts,
    recorders, first, last (null: no messages), gaps, lost, unknown_gaps, seconds."""
    traffic: Rows
    """start, prefix ("" for all others together), messages."""
    prefixes: Rows
    """Of the report's first `PREFIXES_MAX` and, together, the others: prefix, messages, bytes."""
    hot_keys: Rows
    senders: Rows
    receivers: Rows
    fan_out: Rows
    unheard: Rows
    """Prefixes with messages that nobody received: as `fan_out.deliveries`."""
    users: Rows
    slow: Rows
    slow_count: int
    backlogs: Rows
    """Of the slow ones recorder, client, connected_at, start, backlog (the most in the window)."""
    latency: Rows
    broker_latency: Rows
    losses: Rows
    gaps_by_recorder: Rows
    strange: Rows
    strange_traffic: Rows
    """Of the strangest prefixes host, prefix, start, messages."""
    events: Rows
    """event, times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How finely to look; `window_seconds` None: as the length of the recording suggests."""

    depth: int = 2
    separator: str = columns.SEPARATOR
    window_seconds: float | None = None


def gather(
    read: Callable[[Table], DataFrame],
    scope: Scope,
    step: Callable[[str], None] = lambda what: None,
) -> Facts:
    """Ask everything; `step` is told what is being asked."""
    step("reading the recording")
    messages = read("messages").persist()
    clients = read("clients").persist()
    events = read("events").persist()
    try:
        return _ask(messages, clients, events, scope, step)
    finally:
        for table in (messages, clients, events):
            table.unpersist()


def _ask(
    messages: DataFrame,
    clients: DataFrame,
    events: DataFrame,
    scope: Scope,
    step: Callable[[str], None],
) -> Facts:
    summary = _summary(messages)
    window_seconds = scope.window_seconds or suitable_window(summary["seconds"])
    by_window: dict[str, Any] = {"window_seconds": window_seconds}
    by_prefix: dict[str, Any] = {"depth": scope.depth, "separator": scope.separator}

    step("traffic")
    parts = traffic(messages, **by_prefix, **by_window).persist()
    prefixes, busiest = _prefixes(parts)
    over_time = _folded(parts, busiest)
    top_keys = _rows(hot_keys(messages, top=KEYS_MAX))

    step("who sends what to whom")
    sent = _rows(senders(messages, **by_prefix).limit(FLOWS_MAX))
    received = _rows(receivers(messages, events, **by_prefix).limit(FLOWS_MAX))
    distribution = _rows(fan_out(messages))
    unheard = deliveries(messages, **by_prefix).where("unheard > 0")
    nobody = _rows(unheard.orderBy(F.desc("unheard"), "prefix").limit(ROWS_MAX))
    people = _rows(users(clients).limit(ROWS_MAX))

    step("what is slow")
    behind = _rows(slow_consumers(clients))
    waited = _backlogs(clients, behind[:SLOW_MAX], window_seconds)
    probes = _rows(latency(messages, **by_window))
    inside = _rows(broker_latency(events))

    step("what was lost")
    lost = _rows(losses(messages, **by_window))
    by_recorder = _rows(_gaps_by_recorder(messages))

    step("what is unusual")
    strange = _rows(anomalies(messages, **by_prefix, **by_window).limit(STRANGE_MAX))
    strange_traffic = _of_strange(messages, strange, scope, window_seconds)
    happened = _rows(events.groupBy("event").agg(F.count("*").alias("times")).orderBy("event"))
    parts.unpersist()
    return Facts(
        window_seconds=window_seconds,
        separator=scope.separator,
        depth=scope.depth,
        summary=summary,
        traffic=over_time,
        prefixes=prefixes,
        hot_keys=top_keys,
        senders=sent,
        receivers=received,
        fan_out=distribution,
        unheard=nobody,
        users=people,
        slow=behind[:ROWS_MAX],
        slow_count=len(behind),
        backlogs=waited,
        latency=probes,
        broker_latency=inside,
        losses=lost,
        gaps_by_recorder=by_recorder,
        strange=strange,
        strange_traffic=strange_traffic,
        events=happened,
    )


def suitable_window(seconds: float) -> float:
    """The shortest of `WINDOW_SECONDS` of which there are not too many."""
    fitting = [window for window in WINDOW_SECONDS if seconds / window <= WINDOWS_MAX]
    return fitting[0] if fitting else WINDOW_SECONDS[-1]


def _rows(result: DataFrame) -> Rows:
    """Times are UTC."""
    rows: Rows = result.toArrow().to_pylist()
    return rows


def _summary(messages: DataFrame) -> Row:
    said = columns.is_message()
    (row,) = _rows(
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
    """The busiest, and their names; behind them the sum of the others, if there are any."""
    sums = (F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    by_prefix = parts.groupBy("prefix").agg(*sums)
    found = _rows(by_prefix.orderBy(F.desc("messages"), "prefix").limit(PREFIXES_MAX))
    names = [row["prefix"] for row in found]
    (others,) = _rows(
        by_prefix.where(~F.col("prefix").isin(names)).agg(*sums, F.count("*").alias("prefixes"))
    )
    return found + ([{"prefix": None, **others}] if others["prefixes"] else []), names


def _folded(parts: DataFrame, names: list[str]) -> Rows:
    """Messages by window and prefix, null for all prefixes without a name of their own."""
    named = F.when(F.col("prefix").isin(names), F.col("prefix"))
    return _rows(
        parts.groupBy("start", named.alias("prefix"))
        .agg(F.sum("messages").alias("messages"))
        .orderBy("start", "prefix")
    )


def _backlogs(clients: DataFrame, slow: Rows, window_seconds: float) -> Rows:
    if not slow:
        return []
    numbers = [row["client"] for row in slow]
    found = _rows(
        clients.where(F.col("client").isin(numbers) & F.col("backlog").isNotNull())
        .groupBy(*CLIENT, columns.window_start(window_seconds).alias("start"))
        .agg(F.max("backlog").alias("backlog"))
        .orderBy("start")
    )
    wanted = {tuple(row[name] for name in CLIENT) for row in slow}
    return [row for row in found if tuple(row[name] for name in CLIENT) in wanted]


def _gaps_by_recorder(messages: DataFrame) -> DataFrame:
    return (
        gaps(messages)
        .groupBy("recorder")
        .agg(
            F.count("*").alias("gaps"),
            F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
            F.count_if(F.col("lost").isNull()).alias("unknown"),
            F.max("timestamp").alias("last"),
        )
        .orderBy(F.desc("lost"), "recorder")
    )


def strangest(strange: Rows) -> list[tuple[str, str]]:
    """Host and prefix of those with the highest scores, the strangest first."""
    found = dict.fromkeys((row["host"], row["prefix"]) for row in strange)
    return list(found)[:STRANGE_PREFIXES_MAX]


def _of_strange(messages: DataFrame, strange: Rows, scope: Scope, window_seconds: float) -> Rows:
    wanted = strangest(strange)
    if not wanted:
        return []
    prefix = columns.prefix(scope.depth, scope.separator)
    found = _rows(
        messages.where(columns.is_message() & prefix.isin([name for _, name in wanted]))
        .groupBy(
            "host", prefix.alias("prefix"), columns.window_start(window_seconds).alias("start")
        )
        .agg(F.count("*").alias("messages"))
        .orderBy("start")
    )
    return [row for row in found if (row["host"], row["prefix"]) in set(wanted)]
