"""How long do messages take?

There are two measurements. The recorder's probes, one each second, go the whole way through both
sockets and the broker, as a client's messages do. And the broker counts how long each delivery took
inside it, for all messages.

Probes across which the clock was set back, and messages of others under that key, are counted as
unusable.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from sbus.pipeline.jobs import columns
from sbus.pipeline.store.schemas import PROBE_KEY_PREFIX

STATS_EVENT = "stats"
HISTOGRAM = (
    "struct<latency: struct<bounds_us: array<bigint>, counts: array<bigint>, sum_us: bigint>>"
)


def is_probe() -> Column:
    return F.col("key") == F.concat(F.lit(PROBE_KEY_PREFIX), F.col("recorder"))


def latency(messages: DataFrame, *, window_seconds: float = 60.0) -> DataFrame:
    """recorder, start, probes, unusable, and of the usable ones p50_ms, p95_ms, p99_ms, max_ms
    (null if there are none); oldest first. Percentiles are interpolated between two probes."""
    sent_us = F.col("value").cast("string").try_cast("bigint")
    took_ms = (F.unix_micros("timestamp") - sent_us) / 1000
    usable_ms = F.when(took_ms >= 0, took_ms)
    return (
        messages.where(columns.is_message() & is_probe())
        .groupBy("recorder", columns.window_start(window_seconds).alias("start"))
        .agg(
            F.count("*").alias("probes"),
            (F.count("*") - F.count(usable_ms)).alias("unusable"),
            *(F.percentile(usable_ms, p / 100).alias(f"p{p}_ms") for p in (50, 95, 99)),
            F.max(usable_ms).alias("max_ms"),
        )
        .orderBy("start", "recorder")
    )


def broker_latency(events: DataFrame) -> DataFrame:
    """recorder, bound_us (null: more than any bound), deliveries: how many deliveries took at most
    that, and more than the previous bound, while they were recorded.

    A running broker's counts only grow. Where they decrease, it was restarted and counts from 0.
    """
    in_order = Window.partitionBy(*columns.RECORDING).orderBy("offset")
    found = (
        events.where(F.col("event") == STATS_EVENT)
        .select(*columns.RECORDING, "offset", F.from_json("fields", HISTOGRAM).alias("read"))
        .select(*columns.RECORDING, "offset", "read.latency.bounds_us", "read.latency.counts")
        .where(F.size("counts") == F.size("bounds_us") + 1)
        .withColumn("before", F.lag("counts").over(in_order))
        .where(F.size("before") == F.size("counts"))
    )
    went_back = F.exists(F.zip_with("counts", "before", lambda now, then: now < then), lambda b: b)
    grown = F.zip_with("counts", "before", lambda now, then: now - then)
    return (
        found.select(
            "recorder",
            F.posexplode(F.when(went_back, F.col("counts")).otherwise(grown)),
            "bounds_us",
        )
        .select("recorder", F.get("bounds_us", F.col("pos")).alias("bound_us"), "col")
        .groupBy("recorder", "bound_us")
        .agg(F.sum("col").alias("deliveries"))
        .orderBy("recorder", F.asc_nulls_last("bound_us"))
    )
