"""What does each user take of the bus?

From snapshots of clients, so all of it is known to the packet, whatever was recorded of messages; a
client that came and went between two snapshots is missing. A user is one of a host: the same number
elsewhere is somebody else.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs.counters import CLIENT, answered, growths

COUNTERS = (
    *("messages_in", "bytes_in", "delivered", "delivered_bytes"),
    *("discarded", "refused"),
)
PROGRAMS_MAX = 20
"""Names in one cell."""


def users(clients: DataFrame) -> DataFrame:
    """host, uid, clients, programs (their names, some of them), and of all of its clients together
    since recording began messages_in and bytes_in (published), delivered and delivered_bytes,
    discarded, refused; backlog_max, the most that waited for one client. The busiest first."""
    by_client = (
        answered(clients)
        .groupBy("host", "uid", *CLIENT)
        .agg(
            *growths(COUNTERS),
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
