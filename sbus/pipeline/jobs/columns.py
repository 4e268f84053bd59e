"""What the jobs mean by a message, a prefix, a window and a payload's size, as column expressions.

Times are in whole microseconds, so the start of a window is exact.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

SECOND_US = 1_000_000
SEPARATOR = "/"
RECORDING = ("recorder", "incarnation")
"""Identify a recording: within one, offsets are unique and give the order of rows."""


def is_message() -> Column:
    """A row that is a message and not a gap."""
    return F.col("kind") == "MSG"


def is_gap() -> Column:
    return F.col("kind") == "GAP"


def prefix(depth: int, separator: str = SEPARATOR) -> Column:
    """The first `depth` segments of the key; the whole key where it has no more."""
    return F.substring_index(F.col("key"), separator, depth)


def payload_bytes() -> Column:
    """The size of the payload; 0 if it is unknown, as for secret messages."""
    return F.coalesce("payload_bytes", F.lit(0))


def window_start(window_seconds: float, timestamp: str = "timestamp") -> Column:
    """The start of the window with this time; windows are counted from 1970."""
    window_us = microseconds(window_seconds)
    time_us = F.unix_micros(timestamp)
    return F.timestamp_micros(time_us - F.pmod(time_us, F.lit(window_us)))


def microseconds(seconds: float) -> int:
    """At least 1, because a window must not be empty."""
    return max(1, round(seconds * SECOND_US))


def publishers() -> Column:
    """The number of clients that published; null if the recorder could not see it.

    A bus that is restarted numbers its clients from the beginning, so the pid counts, too.
    """
    return F.when(F.count("client") > 0, F.count_distinct("recorder", "client", "pid"))
