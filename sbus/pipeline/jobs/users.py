"""How much of the bus does each user use?

The snapshots of clients count all packets, whether or not the messages were recorded. A client that
connected and left between two snapshots is missing. The same uid on two hosts is two users.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs.counters import CLIENT, answered, growth

COUNTERS = ("messages_in", "bytes_in", "delivered", "delivered_bytes", "discarded", "refused")
PROGRAMS_MAX = 20
"""Names in one row."""


def users(clients: DataFrame) -> DataFrame:
    """host, uid, clients, programs (some names), and the sums of all clients since recording began:
    messages_in and bytes_in (published), delivered, delivered_bytes, discarded, refused; and
    backlog_max, the largest backlog of one client. The busiest first."""
    by_client = (
        answered(clients)
        .groupBy("host", "uid", *CLIENT)
        .agg(
            *(growth(counter).alias(counter) for counter in COUNTERS),
            F.max("backlog").alias("backlog_max"),
            F.max("program").alias("program"),
        )
    )
    return (
        by_client.groupBy("host", "uid")
        .agg(
            F.count("*").alias("clients"),
            F.slice(F.sort_array(F.collect_set("program")), 1, PROGRAMS_MAX).alias("programs"),
            *(F.sum(counter).alias(counter) for counter in COUNTERS),
            F.max("backlog_max").alias("backlog_max"),
        )
        .orderBy(F.desc(F.col("messages_in") + F.col("delivered")), "host", "uid")
    )
