"""The three tables of a recording, as Arrow schemas.

Each row has an `offset`: 0, 1, 2 … per recorder and table, never used twice. `key` is text as
`protocol.text.to_text` writes it. `value` is the payload, null for another user's secret message;
`payload_bytes` is its size, so questions about sizes need not read payloads.
A row of kind GAP stands where `lost` messages are missing; null means that the number is unknown.
Columns about the publisher are null where it is unknown.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

IDENTITY: Final = ("recorder", "incarnation", "host", "bus")
"""The columns that are the same in all rows of a recording by one recorder."""
_COMMON: Final = [
    *((name, pa.string()) for name in IDENTITY),
    ("offset", pa.int64()),
    ("timestamp", TIMESTAMP),
]
"""Who wrote a row, its number there, and when."""

MESSAGES: Final = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("payload_bytes", pa.int64()),
        ("kind", pa.string()),
        ("lost", pa.int64()),
        *_COMMON,
        *((name, pa.int64()) for name in ("client", "uid", "gid", "pid")),
        ("program", pa.string()),
        ("recipients", pa.int64()),
        ("epoch", pa.string()),
        ("number", pa.int64()),
    ]
)
"""`epoch` and `number` are the place of a message that another bus sent, of a GAP of known size the
place of the last missing one."""

CLIENTS: Final = pa.schema(
    [
        *_COMMON,
        *((name, pa.int64()) for name in ("client", "uid", "gid", "pid")),
        ("program", pa.string()),
        ("worker", pa.int32()),
        ("connected_at", TIMESTAMP),
        *(
            (name, pa.int64())
            for name in (
                *("messages_in", "bytes_in", "accepted", "delivered", "delivered_bytes"),
                *("discarded", "backlog", "backlog_bytes", "subscriptions", "refused"),
            )
        ),
        *((name, pa.string()) for name in ("soft", "hard", "order")),
        ("stalled", pa.bool_()),
        ("waits_for", pa.string()),
    ]
)
"""A row per client and snapshot; from `messages_in` on null where the worker did not answer."""

EVENTS: Final = pa.schema(
    [
        *_COMMON,
        ("event", pa.string()),
        *((name, pa.int64()) for name in ("client", "uid", "pid")),
        ("program", pa.string()),
        ("worker", pa.int32()),
        ("fields", pa.string()),
    ]
)
"""`fields` is the whole event, as a JSON object."""

TABLES: Final = {"messages": MESSAGES, "clients": CLIENTS, "events": EVENTS}
PARTITIONS: Final = pa.schema(
    [
        ("date", pa.date32()),
        *((name, pa.string()) for name in ("host", "recorder", "incarnation")),
    ]
)
"""The columns by which sealed rows are divided into files. `date`, in UTC, is only there."""


def _without(names: Iterable[str]) -> dict[str, pa.Schema]:
    return {
        table: pa.schema([field for field in schema if field.name not in names])
        for table, schema in TABLES.items()
    }


SEGMENT_SCHEMAS: Final = _without(IDENTITY)
"""The columns in segment files: readers know the others from the recorder's file."""
FILE_SCHEMAS: Final = _without(PARTITIONS.names)
"""The columns in sealed files."""

MESSAGE: Final = "MSG"
GAP: Final = "GAP"

PROBE_KEY_PREFIX: Final = "sbus/probe/"
"""Followed by the name of a recorder, the key of the probes that it publishes to itself. Their
payload is the time of sending in microseconds since 1970, in decimal."""


def timestamp_us(moment: datetime) -> int:
    """Microseconds since 1970; a time without a zone is in UTC."""
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def conform(
    batch: pa.RecordBatch, schema: pa.Schema, known: Mapping[str, str | None] = MappingProxyType({})
) -> pa.RecordBatch:
    """The columns of `schema`, in its order. One that the batch lacks has the same value in every
    row: that in `known`, or null."""
    present = set(batch.schema.names)
    columns = [
        batch[field.name].cast(field.type)
        if field.name in present
        else pa.repeat(pa.scalar(known.get(field.name), field.type), batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
