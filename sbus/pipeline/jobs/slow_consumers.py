"""Who does not keep up?

From snapshots of clients. Slow is whoever had messages discarded, had its publishers held back, or
was seen with a backlog. Its backlog's growth is the slope of the straight line that fits its
snapshots best, so one glimpse of a burst is not taken for a trend; of a client that was seen only
once it is null.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs.columns import SECOND_US
from sbus.pipeline.jobs.counters import CLIENT, answered, growth


def slow_consumers(clients: DataFrame) -> DataFrame:
    """recorder, client, connected_at, host, uid, pid, program, snapshots, delivered, discarded
    (both since recording began), backlog_mean, backlog_max, backlog_last, backlog_bytes_max,
    backlog_growth (messages a second), stalled_share (of snapshots, 0 to 1), soft, hard (its
    policies, the last it had). Who lost most first."""
    seconds = F.unix_micros("timestamp") / SECOND_US
    return (
        answered(clients)
        .groupBy(*CLIENT, "host", "uid", "pid")
        .agg(
            F.max("program").alias("program"),
            F.count("*").alias("snapshots"),
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
