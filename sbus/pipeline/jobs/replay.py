"""Publishes recorded messages onto a bus again.

Messages of one recording keep their order; those of several are merged by time. Intervals are as
recorded, divided by `speed`. Where a clock was set back, a message that seems older than the one
before it follows immediately.

GAP rows, probes and messages under keys that begin with `!` concern only the recorded bus and are
left out. Rows pass through the driver, a partition at a time.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from sbus.pipeline.jobs import columns
from sbus.pipeline.jobs.latency import is_probe
from sbus.protocol.text import from_text

Publish = Callable[[bytes, bytes], None]


class Recorded(NamedTuple):
    key: bytes
    payload: bytes
    due_us: int
    """Microseconds since 1970."""


def recorded(messages: DataFrame) -> DataFrame:
    """key, value, due_us of the messages to publish, in that order."""
    so_far = Window.partitionBy(*columns.RECORDING).orderBy("offset")
    return (
        messages.where(columns.is_message() & ~is_probe() & ~F.col("key").startswith("!"))
        .withColumn("due_us", F.max(F.unix_micros("timestamp")).over(so_far))
        .orderBy("due_us", *columns.RECORDING, "offset")
        .select("key", "value", "due_us")
    )


def replay(
    messages: DataFrame,
    publish: Publish,
    *,
    speed: float | None = 1.0,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Publish all of them, as fast as the bus takes them if `speed` is None; returns how many."""
    rows = recorded(messages).toLocalIterator(prefetchPartitions=True)
    found = (Recorded(from_text(key), bytes(value or b""), due) for key, value, due in rows)
    sent = 0
    for message in found if speed is None else paced(found, speed, now, sleep):
        publish(message.key, message.payload)
        sent += 1
    return sent


def paced(
    messages: Iterable[Recorded],
    speed: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Recorded]:
    """The same messages, each when it is due; a late one does not delay the next."""
    began: tuple[int, float] | None = None
    for message in messages:
        if began is None:
            began = message.due_us, now()
        due = began[1] + (message.due_us - began[0]) / columns.SECOND_US / speed
        if (wait := due - now()) > 0:
            sleep(wait)
        yield message
