"""How much is sent, under which prefix, and when?

Windows without messages have no row. Bytes are those of payloads.
"""

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
