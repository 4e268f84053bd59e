"""Which clients do not keep up, and how much of the bus does each user use?

Clients are known from snapshots, which hold counts since the client connected, of all packets,
recorded or not. Counts from before the recording's first snapshot do not belong to it; those of a
client that connected later begin at 0. Counters never decrease, so a client's highest and lowest
are its last and first, even if a clock was set back.

    growth = highest - (lowest if it was there at the recorder's first snapshot, else 0)

A client is identified by its number and the time it connected, because a bus that is restarted
reuses the numbers. If a recording was deleted and begun anew while it was connected, each of the
two counts for itself, because what happened in between is in neither. Snapshots without counts,
from a worker that did not answer, are ignored. A client that came and left between two snapshots is
in none of them.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from sbus.pipeline.jobs import columns

CLIENT = (*columns.RECORDING, "client", "connected_at")
"""Identifies a client of a recording among those of all buses and times."""
CONNECTED_EVENT = "client-connected"
COUNTERS = ("delivered", "delivered_bytes", "discarded", "refused")
PROGRAMS_MAX = 20
"""Names in one row."""


def slow_consumers(clients: DataFrame) -> DataFrame:
    """recorder, incarnation, client, connected_at, host, uid, pid, program, snapshots, since, until
    (the times of its first and last snapshot), delivered, discarded (both since recording began),
    backlog_mean, backlog_max, backlog_last, backlog_bytes_max, backlog_growth (messages per
    second), stalled_share (of snapshots, 0 to 1), soft, hard (its last policies): clients with
    discarded messages, held publishers or a backlog. The most discarded first.

    The growth of a backlog is the slope of a least-squares line through its snapshots, so a single
    burst is not a trend; with only one snapshot it is null."""
    seconds = F.unix_micros("timestamp") / columns.SECOND_US
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


def users(messages: DataFrame, clients: DataFrame, events: DataFrame) -> DataFrame:
    """host, uid, messages and bytes (published, as far as recorded), clients, programs (some
    names), measured (how many of the clients are in a snapshot); of those, since recording began,
    delivered, delivered_bytes, discarded, refused, and backlog_max, the largest backlog of one
    client (null: none is in a snapshot). The busiest first.

    What was published is counted from the messages; those whose publisher is unknown are left out.
    The same uid on two hosts is two users."""
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
        F.count_distinct("recorder", "client", "connected_at").alias("measured"),
        *(F.sum(counter).alias(counter) for counter in COUNTERS),
        F.max("backlog_max").alias("backlog_max"),
    )


def answered(clients: DataFrame) -> DataFrame:
    """The snapshots that have counts; `recorded_since` is the time of their recording's first."""
    whole = Window.partitionBy(*columns.RECORDING)
    return clients.where(F.col("messages_in").isNotNull()).withColumn(
        "recorded_since", F.min("timestamp").over(whole)
    )


def growth(counter: str) -> Column:
    """An aggregate over the snapshots of one client, of `answered`."""
    was_there = F.min("connected_at") < F.min("recorded_since")
    return F.max(counter) - F.when(was_there, F.min(counter)).otherwise(0)
