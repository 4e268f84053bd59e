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
    """recorder, start, since, until, gaps, lost, unknown: for each window with gaps the time of the
    last row before the first of them (null: there is none) and that of the last, their number, the
    number of messages lost, and the number of gaps that do not know it."""
    found = (
        messages.where(columns.is_gap())
        .groupBy("recorder", columns.window_start(window_seconds).alias("start"))
        .agg(
            (F.min("offset") - 1).alias("offset"),
            F.max("timestamp").alias("until"),
            F.count("*").alias("gaps"),
            F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
            F.count_if(F.col("lost").isNull()).alias("unknown"),
        )
    )
    row_before = ["recorder", "offset"]
    before = (
        messages.join(F.broadcast(found.select(*row_before)), row_before)
        .groupBy(*row_before)
        .agg(F.max("timestamp").alias("since"))
    )
    return (
        found.join(before, row_before, "left")
        .select("recorder", "start", "since", "until", "gaps", "lost", "unknown")
        .orderBy("start", "recorder")
    )
