"""What the jobs mean by a message, a prefix, a window and a payload's size, as column expressions.

Times are counted in whole microseconds, so that a window's start is exact. Knows no table but by
the names of its columns.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

SECOND_US = 1_000_000
SEPARATOR = "/"


def is_message() -> Column:
    """A row that is a message; the other kind of row says that some are missing."""
    return F.col("kind") == "MSG"


def is_gap() -> Column:
    return F.col("kind") == "GAP"


def prefix(depth: int, separator: str = SEPARATOR) -> Column:
    """The first `depth` segments of the key; the whole key where it has no more."""
    return F.substring_index(F.col("key"), separator, depth)


def payload_bytes() -> Column:
    """0 also where the payload is not known, as that of secret messages."""
    return F.coalesce(F.octet_length("value"), F.lit(0)).cast("long")


def window_start(window_seconds: float, timestamp: str = "timestamp") -> Column:
    """The start of the window that the time is in; windows begin at 1970."""
    window_us = microseconds(window_seconds)
    time_us = F.unix_micros(timestamp)
    return F.timestamp_micros(time_us - F.pmod(time_us, F.lit(window_us)))


def microseconds(seconds: float) -> int:
    """At least 1: no window is empty."""
    return max(1, round(seconds * SECOND_US))


def publishers() -> Column:
    """How many clients published; null where it was recorded without the right to know.

    A bus that was started again counts its clients from the beginning, hence the pid.
    """
    return F.when(F.count("client") > 0, F.count_distinct("recorder", "client", "pid"))
