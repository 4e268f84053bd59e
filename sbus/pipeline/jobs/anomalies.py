"""When did a prefix not behave as it usually does?

Each prefix is compared with itself, window by window, empty ones included; windows in a row that
stand out are one incident (`incidents.py`). The first and the last window of a host, which the
recording covers only in part, are left out, and so are prefixes with fewer than `WINDOWS_MIN`
windows.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from sbus.pipeline.jobs import columns
from sbus.pipeline.jobs.incidents import SCORE_MIN, Incident, incidents

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
    time_us = F.unix_micros("timestamp")
    counted = (
        messages.where(columns.is_message())
        .groupBy(
            "host",
            columns.prefix(depth, separator).alias("prefix"),
            (time_us - F.pmod(time_us, F.lit(window_us))).alias("start_us"),
        )
        .agg(F.count("*").alias("messages"))
    )

    def of_host(own: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([*_of_host(own, window_us, score_min)], _FOUND)

    found = counted.groupBy("host").applyInArrow(of_host, from_arrow_schema(_FOUND))
    return found.select(
        *("host", "prefix"),
        *(F.timestamp_micros(f"{name}_us").alias(name) for name in ("start", "end")),
        *("messages", "expected", "usual", "spread", "score", "why"),
    ).orderBy(F.desc(F.abs("score")), "host", "prefix", "start")


def _of_host(counted: pa.Table, window_us: int, score_min: float) -> Iterator[dict[str, object]]:
    """The incidents in a host's prefix, start_us, messages of each window with messages."""
    first_us, last_us = pc.min_max(counted["start_us"]).as_py().values()
    windows = (last_us - first_us) // window_us + 1
    if windows - 2 < WINDOWS_MIN:
        return
    host = counted["host"][0].as_py()
    by_prefix = counted.group_by("prefix").aggregate([("start_us", "list"), ("messages", "list")])
    for prefix, starts_us, messages in zip(*by_prefix.itercolumns(), strict=True):
        counts = np.zeros(windows, np.int64)
        counts[(starts_us.values.to_numpy() - first_us) // window_us] = messages.values.to_numpy()
        for incident in incidents(counts[1:-1], score_min):
            named = {"host": host, "prefix": prefix.as_py()}
            yield named | _row(incident, first_us + window_us, window_us)


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
