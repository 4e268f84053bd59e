"""How much the counters of clients grew during a recording.

A snapshot holds counts since its client connected. Counts from before the recording's first
snapshot do not belong to it; those of a client that connected later begin at 0. Counters never
decrease, so a client's highest and lowest are its last and first, even if a clock was set back.

    growth = highest - (lowest if it was there at the recorder's first snapshot, else 0)

A client is identified by its number and the time it connected, because a bus that is restarted
reuses the numbers. Snapshots without counts, from a worker that did not answer, are ignored.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

CLIENT = ("recorder", "client", "connected_at")
"""Identifies a client among those of all buses and times."""


def answered(clients: DataFrame) -> DataFrame:
    """The snapshots that have counts, with `recorded_since`, the time of their recorder's first."""
    whole = Window.partitionBy("recorder")
    return clients.where(F.col("messages_in").isNotNull()).withColumn(
        "recorded_since", F.min("timestamp").over(whole)
    )


def growth(counter: str) -> Column:
    """An aggregate over the snapshots of one client, of `answered`."""
    was_there = F.min("connected_at") < F.min("recorded_since")
    return F.max(counter) - F.when(was_there, F.min(counter)).otherwise(0)
