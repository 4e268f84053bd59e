"""Rows for the jobs, written by hand."""

from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.store.schemas import MESSAGES, PROBE_KEY_PREFIX
from sbus.protocol.text import to_text

SECOND_US = 1_000_000
T0 = 1_772_000_000 * SECOND_US

Row = dict[str, Any]


def message(key: bytes, value: bytes | None = b"", **columns: Any) -> Row:
    size = None if value is None else len(value)
    known = {
        "incarnation": "i1",
        "kind": "MSG",
        "key": to_text(key),
        "value": value,
        "payload_bytes": size,
    }
    return {**known, **columns}


def gap(**columns: Any) -> Row:
    known = {"incarnation": "i1", "kind": "GAP", "key": "", "value": b"", "payload_bytes": 0}
    return {**known, **columns}


def table(rows: list[Row], schema: pa.Schema = MESSAGES) -> pa.Table:
    """Times are given in microseconds since 1970."""
    columns = []
    for field in schema:
        cells = [row.get(field.name) for row in rows]
        is_time = pa.types.is_timestamp(field.type)
        made = pa.array(cells, pa.int64() if is_time else field.type)
        columns.append(made.cast(field.type))
    return pa.table(columns, schema=schema)


def frame(spark: SparkSession, rows: list[Row], schema: pa.Schema = MESSAGES) -> DataFrame:
    return spark.createDataFrame(table(rows, schema)).coalesce(1)


def snapshot(offset: int, **columns: Any) -> Row:
    nothing = dict.fromkeys(
        ("messages_in", "bytes_in", "delivered", "delivered_bytes", "discarded", "refused"), 0
    )
    return {
        **{
            "recorder": "r1",
            "incarnation": "i1",
            "host": "alder",
            "offset": offset,
            "timestamp": T0 + offset * SECOND_US,
        },
        **{"client": 1, "uid": 7, "pid": 3, "program": "p", "connected_at": T0 - SECOND_US},
        **{"backlog": 0, "backlog_bytes": 0, "stalled": False, "soft": "queue", "hard": "discard"},
        **nothing,
        **columns,
    }


class Rows(NamedTuple):
    messages: list[Row]
    clients: list[Row]
    events: list[Row]


def twice_recorded() -> Rows:
    """A bus whose recording was deleted and begun anew, both with the offsets from 0 on. The
    earlier one comes later in the alphabet. The bus and its clients went on."""
    rows = Rows([], [], [])
    for incarnation, began_s, counted in (("i2", 0, 0), ("i1", 7, 1_000)):
        own: Row = {"recorder": "r1", "incarnation": incarnation, "host": "alder", "bus": "/b"}
        by: Row = {"client": 1, "pid": 10, "uid": 7, "program": "p", "recipients": 1}
        for offset in range(30):
            # In each recording the clock is set back in the middle.
            at_us = T0 + (began_s + offset // 5 - offset // 15) * SECOND_US + offset
            here: Row = {**own, "offset": offset, "timestamp": at_us}
            if offset % 6 == 5:
                rows.messages.append(gap(lost=offset + counted, **here))
            elif offset % 6 == 4:
                key, sent_us = PROBE_KEY_PREFIX + "r1", at_us - 100 - counted
                rows.messages.append(message(key.encode(), b"%d" % sent_us, **here))
            else:
                text = f"{incarnation} {offset}".encode()
                rows.messages.append(message(b"k/%d" % (offset % 4), text, **here, **by))
        for offset in range(4):
            grown = counted + 10 * offset
            rows.clients.append(
                snapshot(
                    offset,
                    **{
                        "incarnation": incarnation,
                        "timestamp": T0 + (began_s + offset) * SECOND_US,
                    },
                    **{"delivered": grown, "discarded": 2 * grown, "backlog": offset + counted},
                )
            )
            counts = [grown + 5, 3 * grown]
            histogram = f'{{"latency": {{"bounds_us": [100], "counts": {counts}, "sum_us": 1}}}}'
            here = {**own, "offset": offset, "timestamp": T0}
            rows.events.append({**here, "event": "stats", "fields": histogram})
    return rows
