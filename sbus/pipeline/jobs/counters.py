"""What clients' counters grew by during a recording.

A snapshot holds counts since its client connected. What was counted before the recording's first
snapshot is none of it; a client that came later is counted from nothing. Counters never go back, so
the highest and the lowest of a client are its last and its first, whatever the clock did meanwhile.

    growth = highest - (lowest if it was there at the recorder's first snapshot, else 0)

A client is known by its number and the time it connected: a bus that is started again numbers them
anew. Snapshots of a worker that did not answer have no counts, and count for nothing.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

CLIENT = ("recorder", "client", "connected_at")
"""What tells one client from all others, of all buses and times."""


def answered(clients: DataFrame) -> DataFrame:
    """Only snapshots that have counts; beside them `recorded_since`, its recorder's first."""
    whole = Window.partitionBy("recorder")
    return clients.where(F.col("messages_in").isNotNull()).withColumn(
        "recorded_since", F.min("timestamp").over(whole)
    )


def growth(counter: str) -> Column:
    """An aggregate over the snapshots of one client, of `answered`."""
    was_there = F.min("connected_at") < F.min("recorded_since")
    return F.max(counter) - F.when(was_there, F.min(counter)).otherwise(0)


def growths(counters: Sequence[str]) -> list[Column]:
    return [growth(counter).alias(counter) for counter in counters]
