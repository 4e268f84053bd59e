"""When did a prefix not behave as it usually does?

Each prefix is compared with itself, window by window, empty ones included; windows in a row that
stand out are one incident (`incidents.py`). The first and the last window of a host, which the
recording covers only in part, are left out, and so are prefixes with fewer than `WINDOWS_MIN`
windows.
"""

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.window import Window

from sbus.pipeline.jobs import columns
from sbus.pipeline.jobs.incidents import SCORE_MIN, Counts, Incident, incidents

WINDOWS_MIN = 8
_FOUND = pa.schema(
    [
        *((name, pa.string()) for name in ("host", "prefix")),
        *((name, pa.int64()) for name in ("start_us", "end_us", "messages")),
        *((name, pa.float64()) for name in ("expected", "usual", "spread", "score")),
        ("why", pa.string()),
    ]
)


def anomalies(
    messages: DataFrame,
    *,
    depth: int = 2,
    window_seconds: float = 60.0,
    score_min: float = SCORE_MIN,
    separator: str = columns.SEPARATOR,
) -> DataFrame:
    """host, prefix, start, end, messages, expected (in all of its windows), usual, spread (in one),
    score (negative: fewer than usual), why (a sentence): an incident a row, the highest scores
    first."""
    window_us = columns.microseconds(window_seconds)

    def of_prefix(counted: pa.Table) -> pa.Table:
        host, prefix = counted["host"][0].as_py(), counted["prefix"][0].as_py()
        begin_us, counts = every_window(counted, window_us)
        enough = len(counts) >= WINDOWS_MIN
        found = incidents(counts, score_min) if enough else []
        rows = [_row(incident, begin_us, window_us) for incident in found]
        return pa.Table.from_pylist(
            [{"host": host, "prefix": prefix, **row} for row in rows], schema=_FOUND
        )

    return (
        _counted(messages, depth, window_us, separator)
        .groupBy("host", "prefix")
        .applyInArrow(of_prefix, from_arrow_schema(_FOUND))
        .select(
            *("host", "prefix"),
            *(F.timestamp_micros(f"{name}_us").alias(name) for name in ("start", "end")),
            *("messages", "expected", "usual", "spread", "score", "why"),
        )
        .orderBy(F.desc(F.abs("score")), "host", "prefix", "start")
    )


def _counted(messages: DataFrame, depth: int, window_us: int, separator: str) -> DataFrame:
    """host, prefix, start_us, messages of each window with messages; and first_us, last_us, the
    times of the host's first and last message."""
    time_us = F.unix_micros("timestamp")
    of_host = Window.partitionBy("host")
    return (
        messages.where(columns.is_message())
        .groupBy(
            "host",
            columns.prefix(depth, separator).alias("prefix"),
            (time_us - F.pmod(time_us, F.lit(window_us))).alias("start_us"),
        )
        .agg(
            F.count("*").alias("messages"),
            F.min(time_us).alias("first_us"),
            F.max(time_us).alias("last_us"),
        )
        .withColumn("first_us", F.min("first_us").over(of_host))
        .withColumn("last_us", F.max("last_us").over(of_host))
    )


def every_window(counted: pa.Table, window_us: int) -> tuple[int, Counts]:
    """The start of the first whole window of the host's recording, and the counts of all of them;
    of the rows of one prefix in `_counted`."""
    begin_us = -(-counted["first_us"][0].as_py() // window_us) * window_us
    windows = (counted["last_us"][0].as_py() + 1 - begin_us) // window_us
    counts = np.zeros(max(0, windows), np.int64)
    places = (counted["start_us"].to_numpy() - begin_us) // window_us
    whole = (places >= 0) & (places < windows)
    counts[places[whole]] = counted["messages"].to_numpy()[whole]
    return begin_us, counts


def _row(incident: Incident, begin_us: int, window_us: int) -> dict[str, object]:
    windows = incident.end - incident.first
    expected = windows * incident.usual
    seconds = windows * window_us / columns.SECOND_US
    why = f"{incident.messages:,} messages in {seconds:g} s; usually {_shown(expected)}"
    if not incident.messages:
        why = f"silent for {seconds:g} s; usually {_shown(expected)} messages in that time"
    return {
        "start_us": begin_us + incident.first * window_us,
        "end_us": begin_us + incident.end * window_us,
        "expected": expected,
        "why": why,
        **{name: getattr(incident, name) for name in ("messages", "usual", "spread", "score")},
    }


def _shown(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"
