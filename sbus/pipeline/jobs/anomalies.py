"""When did a prefix not behave as it usually does?

Each prefix is compared with itself: its number of messages in a window with the median of all its
windows, empty ones included. The usual deviation is the median absolute deviation (MAD), which a
few extreme windows do not change. Times 1.4826 it estimates the standard deviation of a normal
distribution. If more than half of the windows have the same count, as for rare messages, the MAD is
0; then the mean absolute deviation times 1.2533 is used. Counts of random events deviate by their
square root, so the scale is at least that, and at least one message.

    score = (messages - median) / max(1.4826 MAD or, if that is 0, 1.2533 mean deviation,
                                      sqrt(median), 1)

The first and the last window of a host, which the recording covers only in part, are left out, and
so are prefixes with fewer than `WINDOWS_MIN` windows.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from sbus.pipeline.jobs import columns

WINDOWS_MIN = 8
NORMAL_PER_MAD = 1.4826
NORMAL_PER_MEAN_DEVIATION = 1.2533


def anomalies(
    messages: DataFrame,
    *,
    depth: int = 2,
    window_seconds: float = 60.0,
    score_min: float = 6.0,
    separator: str = columns.SEPARATOR,
) -> DataFrame:
    """host, prefix, start, messages, usual, spread, score (negative: fewer than usual), why (a
    sentence); the highest scores first."""
    by_prefix = ("host", "prefix")
    own = Window.partitionBy(*by_prefix)
    known = (
        _every_window(messages, depth, columns.microseconds(window_seconds), separator)
        .withColumn("usual", F.median("messages").over(own))
        .withColumn("deviation", F.abs(F.col("messages") - F.col("usual")))
        .where(F.col("windows") >= WINDOWS_MIN)
    )
    mad = F.median("deviation").over(own)
    strays = F.when(mad > 0, NORMAL_PER_MAD * mad).otherwise(
        NORMAL_PER_MEAN_DEVIATION * F.avg("deviation").over(own)
    )
    return (
        known.withColumn("spread", F.greatest(strays, F.sqrt("usual"), F.lit(1.0)))
        .withColumn("score", (F.col("messages") - F.col("usual")) / F.col("spread"))
        .where(F.abs("score") >= score_min)
        .select(
            *by_prefix,
            F.timestamp_micros("start_us").alias("start"),
            *("messages", "usual", "spread", "score"),
            F.format_string(
                "%s messages in %s s; usually %s, give or take %s",
                F.format_number("messages", 0),
                F.lit(f"{window_seconds:g}"),
                F.format_number("usual", 0),
                F.format_number("spread", 0),
            ).alias("why"),
        )
        .orderBy(F.desc(F.abs("score")), *by_prefix, "start")
    )


def _every_window(messages: DataFrame, depth: int, window_us: int, separator: str) -> DataFrame:
    """host, prefix, start_us, messages, windows: a row for each prefix of a host and each whole
    window of the host's recording, also without messages; `windows` is the number of windows."""
    time_us = F.unix_micros("timestamp")
    found = messages.where(columns.is_message()).select(
        "host", columns.prefix(depth, separator).alias("prefix"), time_us.alias("time_us")
    )
    start_us = F.col("time_us") - F.pmod("time_us", F.lit(window_us))
    counts = found.groupBy("host", "prefix", start_us.alias("start_us")).agg(
        F.count("*").alias("messages")
    )
    first = F.min("time_us") + F.pmod(-F.min("time_us"), F.lit(window_us))
    end = F.max("time_us") + 1
    last = end - F.pmod(end, F.lit(window_us)) - window_us
    whole = (
        found.groupBy("host")
        .agg(first.alias("first"), last.alias("last"))
        .where("first <= last")
        .withColumn("starts", F.sequence("first", "last", F.lit(window_us)))
        .select("host", F.size("starts").alias("windows"), F.explode("starts").alias("start_us"))
    )
    return (
        counts.select("host", "prefix")
        .distinct()
        .join(whole, "host")
        .join(counts, ["host", "prefix", "start_us"], "left")
        .withColumn("messages", F.coalesce("messages", F.lit(0)))
    )
