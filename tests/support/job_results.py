"""Results of Spark jobs as plain Python values."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame


def answer(result: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Rows as tuples, times as microseconds since 1970."""
    return tuples(result.toArrow(), *names)


def tuples(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The same of a table."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.select(list(names)).columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def keyed(rows: Sequence[tuple[Any, ...]], length: int) -> dict[Any, Any]:
    """Each row's first columns lead to the others; no two rows have the same."""
    found = {row[:length]: row[length:] for row in rows}
    assert len(found) == len(rows)
    return found


GAP_COLUMNS = ("recorder", "incarnation", "offset", "timestamp", "lost")
LOSS_COLUMNS = ("recorder", "incarnation", "start", "gaps", "lost", "unknown")
"""As the oracles have them."""
