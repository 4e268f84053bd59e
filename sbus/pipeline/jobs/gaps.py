"""What is missing from the recording, and where?

A GAP row stands where messages are missing, because the recorder read too slowly or did not run.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns


def gaps(messages: DataFrame) -> DataFrame:
    """recorder, host, offset, timestamp, lost (null: unknown): each gap, by recorder and offset."""
    return (
        messages.where(columns.is_gap())
        .select("recorder", "host", "offset", "timestamp", "lost")
        .orderBy("recorder", "offset")
    )


def losses(messages: DataFrame, *, window_seconds: float = 60.0) -> DataFrame:
    """recorder, start, gaps, lost, unknown: for each window with gaps their number, the number of
    messages lost, and the number of gaps that do not know it."""
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
