"""What is more or less than in an earlier recording of the same bus, as rates."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs.clients import slow_consumers
from sbus.pipeline.jobs.latency import latency
from sbus.pipeline.jobs.traffic import changes
from sbus.pipeline.report.facts import Facts, Row, Rows, collect, end_to_end, summarize
from sbus.pipeline.spark.selection import Table

CHANGES_MAX = 10
_HOUR_SECONDS = 3_600

Read = Callable[[Table], DataFrame]


def compare(read: Read, read_earlier: Read, facts: Facts) -> Row:
    """summary (of the earlier recording), totals (name, before, now; null: unknown), and in
    messages a second keys (key, before, now) and users (host, uid, before, now) that changed most;
    new and gone, the numbers of keys."""
    messages, earlier = read("messages"), read_earlier("messages")
    summary = summarize(earlier)
    probes = collect(latency(earlier, window_seconds=facts.window_seconds))
    before = _measures(summary, read_earlier("clients"), probes)
    now = _measures(facts.summary, read("clients"), facts.latency)
    lengths = {"seconds": _seconds(facts.summary), "earlier_seconds": _seconds(summary)}
    by_user = changes(messages, earlier, "host", "uid", **lengths)
    by_key = changes(messages, earlier, "key", **lengths).persist()
    is_new, is_gone = (F.count_if(F.col(name) == 0) for name in ("before", "now"))
    try:
        (counts,) = collect(by_key.agg(is_new.alias("new"), is_gone.alias("gone")))
        keys = collect(by_key.limit(CHANGES_MAX))
    finally:
        by_key.unpersist()
    totals = [{"name": name, "before": before[name], "now": now[name]} for name in now]
    found = {"summary": summary, "totals": totals, "keys": keys, **counts}
    return {**found, "users": collect(by_user.limit(CHANGES_MAX))}


def _measures(summary: Row, clients: DataFrame, probes: Rows) -> Row:
    seconds = _seconds(summary)
    (slow,) = collect(slow_consumers(clients).agg(F.sum("discarded").alias("discarded")))
    found = end_to_end(probes)
    return {
        "messages a second": summary["messages"] / seconds,
        "bytes of payloads a second": summary["bytes"] / seconds,
        "keys": summary["keys"],
        "publishers": summary["publishers"],
        "deliveries a second": summary["deliveries"] and summary["deliveries"] / seconds,
        "messages discarded an hour": (slow["discarded"] or 0) / seconds * _HOUR_SECONDS,
        "messages missing an hour": summary["lost"] / seconds * _HOUR_SECONDS,
        "milliseconds from end to end": found and found["median_ms"],
    }


def _seconds(summary: Row) -> float:
    """A recording of one message has no length."""
    return float(summary["seconds"]) or 1.0
