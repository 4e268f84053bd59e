"""How much of the bus does each user use?

What was published is counted from the recorded messages; those whose publisher is unknown are left
out. The rest is from the snapshots of clients, which count all packets, recorded or not. A client
that came and left between two snapshots is in none of them: it is counted as a client, but not
as measured. The same uid on two hosts is two users.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sbus.pipeline.jobs import columns
from sbus.pipeline.jobs.counters import CLIENT, answered, growth

CONNECTED_EVENT = "client-connected"
COUNTERS = ("delivered", "delivered_bytes", "discarded", "refused")
PROGRAMS_MAX = 20
"""Names in one row."""


def users(messages: DataFrame, clients: DataFrame, events: DataFrame) -> DataFrame:
    """host, uid, messages and bytes (published, as far as recorded), clients, programs (some
    names), measured (how many of the clients are in a snapshot); of those, since recording began,
    delivered, delivered_bytes, discarded, refused, and backlog_max, the largest backlog of one
    client (null: none is in a snapshot). The busiest first."""
    user = ["host", "uid"]
    return (
        _seen(messages, clients, events)
        .join(_measured(clients), user, "left")
        .fillna(0, ["measured"])
        .orderBy(F.desc(F.col("messages") + F.coalesce("delivered", F.lit(0))), *user)
    )


def _seen(messages: DataFrame, clients: DataFrame, events: DataFrame) -> DataFrame:
    """host, uid, messages, bytes, clients, programs: of all clients that a table has."""
    who = ("host", "uid", "recorder", "client", "pid", "program")
    published = (
        messages.where(columns.is_message() & F.col("uid").isNotNull())
        .groupBy(*who)
        .agg(F.count("*").alias("messages"), F.sum(columns.payload_bytes()).alias("bytes"))
    )
    connected = events.where(F.col("event") == CONNECTED_EVENT)
    found = published
    for others in (clients, connected):
        found = found.unionByName(others.select(*who), allowMissingColumns=True)
    return found.groupBy("host", "uid").agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("messages", "bytes")),
        F.count_distinct("recorder", "client", "pid").alias("clients"),
        F.slice(F.sort_array(F.collect_set("program")), 1, PROGRAMS_MAX).alias("programs"),
    )


def _measured(clients: DataFrame) -> DataFrame:
    """host, uid, measured, the sums of the counters, backlog_max: of clients in snapshots."""
    by_client = (
        answered(clients)
        .groupBy("host", "uid", *CLIENT)
        .agg(
            *(growth(counter).alias(counter) for counter in COUNTERS),
            F.max("backlog").alias("backlog_max"),
        )
    )
    return by_client.groupBy("host", "uid").agg(
        F.count("*").alias("measured"),
        *(F.sum(counter).alias(counter) for counter in COUNTERS),
        F.max("backlog_max").alias("backlog_max"),
    )
