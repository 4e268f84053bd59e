"""Which clients do not keep up?

A client is slow if the snapshots show discarded messages, held publishers or a backlog. The growth
of its backlog is the slope of a least-squares line through its snapshots, so a single burst is not
a trend; with only one snapshot it is null.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs.columns import SECOND_US
from sbus.pipeline.jobs.counters import CLIENT, answered, growth


def slow_consumers(clients: DataFrame) -> DataFrame:
    """recorder, client, connected_at, host, uid, pid, program, snapshots, since, until (the times
    of its first and last snapshot), delivered, discarded (both since recording began),
    backlog_mean, backlog_max, backlog_last, backlog_bytes_max, backlog_growth (messages per
    second), stalled_share (of snapshots, 0 to 1), soft, hard (its last policies). The most
    discarded first."""
    seconds = F.unix_micros("timestamp") / SECOND_US
    return (
        answered(clients)
        .groupBy(*CLIENT, "host", "uid", "pid")
        .agg(
            F.max("program").alias("program"),
            F.count("*").alias("snapshots"),
            F.min("timestamp").alias("since"),
            F.max("timestamp").alias("until"),
            growth("delivered").alias("delivered"),
            growth("discarded").alias("discarded"),
            F.avg("backlog").alias("backlog_mean"),
            F.max("backlog").alias("backlog_max"),
            F.max_by("backlog", "offset").alias("backlog_last"),
            F.max("backlog_bytes").alias("backlog_bytes_max"),
            F.regr_slope("backlog", seconds).alias("backlog_growth"),
            F.avg(F.col("stalled").cast("int")).alias("stalled_share"),
            F.max_by("soft", "offset").alias("soft"),
            F.max_by("hard", "offset").alias("hard"),
        )
        .where((F.col("discarded") > 0) | (F.col("backlog_max") > 0) | (F.col("stalled_share") > 0))
        .orderBy(F.desc("discarded"), F.desc("backlog_max"), "recorder", "client")
    )
