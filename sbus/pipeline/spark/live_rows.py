"""What arrives from a bus as rows of the table `messages`.

Who published is not known: a message carries no sender.
"""

import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from sbus.client.inbox import Lost
from sbus.pipeline.schemas import GAP, MESSAGE, MESSAGES
from sbus.pipeline.store import Origin
from sbus.protocol.packets import Message
from sbus.protocol.text import to_text


class LiveRow(NamedTuple):
    """`lost` is for those of kind GAP; None where nobody knows how many."""

    key: str
    value: bytes
    kind: str
    lost: int | None
    timestamp_us: int


def row_of(item: Message | Lost) -> LiveRow:
    """The row for what has just been received."""
    if isinstance(item, Lost):
        return gap(item.count)
    return LiveRow(to_text(item.key), item.payload, MESSAGE, None, _now_us())


def gap(lost: int | None) -> LiveRow:
    """The row that stands where messages are missing, found out just now."""
    return LiveRow("", b"", GAP, lost, _now_us())


def origin_of(address: str) -> Origin:
    """Who receives: this host, at that bus."""
    return Origin.of(socket.gethostname(), address)


def batch_of(rows: Sequence[LiveRow], first: int, origin: Origin) -> pa.RecordBatch:
    """The rows, numbered from `first` on."""
    count = len(rows)
    known = {
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "kind": [row.kind for row in rows],
        "lost": [row.lost for row in rows],
        "recorder": [origin.recorder] * count,
        "host": [origin.host] * count,
        "bus": [origin.bus] * count,
        "offset": range(first, first + count),
        "timestamp": [row.timestamp_us for row in rows],
    }
    columns = [
        pa.array(known[field.name], field.type)
        if field.name in known
        else pa.nulls(count, field.type)
        for field in MESSAGES
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _now_us() -> int:
    return time.time_ns() // 1000
