"""What is missing from the recording, and where?

A GAP row stands where messages are missing, because the recorder read too slowly or did not run.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns


def gaps(messages: DataFrame) -> DataFrame:
    """recorder, incarnation, host, offset, timestamp, lost (null: unknown): each gap, by recording
    and offset."""
    return (
        messages.where(columns.is_gap())
        .select(*columns.RECORDING, "host", "offset", "timestamp", "lost")
        .orderBy(*columns.RECORDING, "offset")
    )


def losses(messages: DataFrame, *, window_seconds: float = 60.0) -> DataFrame:
    """recorder, incarnation, start, since, until, gaps, lost, unknown: for each recording's window
    with gaps the time of the last row before the first of them (null: there is none) and that of
    the last, their number, the number of messages lost, and the number of gaps that do not know
    it."""
    found = (
        messages.where(columns.is_gap())
        .groupBy(*columns.RECORDING, columns.window_start(window_seconds).alias("start"))
        .agg(
            (F.min("offset") - 1).alias("offset"),
            F.max("timestamp").alias("until"),
            F.count("*").alias("gaps"),
            F.coalesce(F.sum("lost"), F.lit(0)).alias("lost"),
            F.count_if(F.col("lost").isNull()).alias("unknown"),
        )
    )
    row_before = [*columns.RECORDING, "offset"]
    before = (
        messages.join(F.broadcast(found.select(*row_before)), row_before)
        .groupBy(*row_before)
        .agg(F.max("timestamp").alias("since"))
    )
    return (
        found.join(before, row_before, "left")
        .select(*columns.RECORDING, "start", "since", "until", "gaps", "lost", "unknown")
        .orderBy("start", "recorder", "until")
    )
