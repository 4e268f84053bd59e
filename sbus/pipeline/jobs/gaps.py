"""What is missing from the recording, where, and since when?

A GAP row stands where messages are missing: dropped for the recorder because it read too slowly, or
sent while it did not run. `lost` says how many, null that nobody can know.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns


def gaps(messages: DataFrame) -> DataFrame:
    """recorder, host, offset, timestamp, lost (null: unknown): each gap, in the order of each
    recorder."""
    return (
        messages.where(columns.is_gap())
        .select("recorder", "host", "offset", "timestamp", "lost")
        .orderBy("recorder", "offset")
    )


def losses(messages: DataFrame, *, window_seconds: float = 60.0) -> DataFrame:
    """recorder, start, gaps, lost, unknown: of each window with gaps how many, how many messages
    they say were lost, and how many of them do not know."""
    return (
        messages.where(columns.is_gap())
        .groupBy("recorder", columns.window_start(window_seconds).alias("start"))
        .agg(
            F.count("*").alias("gaps"),
            F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
            F.count_if(F.col("lost").isNull()).alias("unknown"),
        )
        .orderBy("start", "recorder")
    )
