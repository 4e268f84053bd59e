"""How much is sent: under which prefix and when, under which keys, and what has changed?

Windows without messages have no row. Bytes are those of payloads. Keys are text as
`sbus.protocol.text.to_text` writes it, so two keys never look the same.
"""

from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns


def traffic(
    messages: DataFrame,
    *,
    depth: int = 2,
    window_seconds: float = 60.0,
    separator: str = columns.SEPARATOR,
) -> DataFrame:
    """start, prefix, messages, bytes, publishers (null: unknown); oldest first, busiest first."""
    return (
        messages.where(columns.is_message())
        .groupBy(
            columns.window_start(window_seconds).alias("start"),
            columns.prefix(depth, separator).alias("prefix"),
        )
        .agg(
            F.count("*").alias("messages"),
            F.sum(columns.payload_bytes()).alias("bytes"),
            columns.publishers().alias("publishers"),
        )
        .orderBy("start", F.desc("messages"), "prefix")
    )


def hot_keys(
    messages: DataFrame, *, top: int = 20, by: Literal["messages", "bytes"] = "messages"
) -> DataFrame:
    """key, messages, bytes, publishers (null: unknown), first, last: the `top` keys, the largest
    first."""
    return (
        messages.where(columns.is_message())
        .groupBy("key")
        .agg(
            F.count("*").alias("messages"),
            F.sum(columns.payload_bytes()).alias("bytes"),
            columns.publishers().alias("publishers"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
        )
        .orderBy(F.desc(by), "key")
        .limit(top)
    )


def changes(
    messages: DataFrame, earlier: DataFrame, *by: str, seconds: float, earlier_seconds: float
) -> DataFrame:
    """What is more or less than in an earlier recording of the same bus: the columns `by`, before,
    now (messages a second; 0: none), for each group of messages in recordings of these lengths. The
    largest differences first."""
    both = messages.select(*by, "kind", F.lit(True).alias("is_now")).unionByName(
        earlier.select(*by, "kind", F.lit(False).alias("is_now"))
    )
    before = F.count_if(~F.col("is_now")) / earlier_seconds
    now = F.count_if("is_now") / seconds
    return (
        both.where(columns.is_message())
        .groupBy(*by)
        .agg(before.alias("before"), now.alias("now"))
        .orderBy(F.desc(F.abs(F.col("now") - F.col("before"))), *by)
    )
