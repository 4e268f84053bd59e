"""Rows of the table `messages`, made of what came: a batch at a time, ready to be written.

Messages come as packets (a plain subscription) or with who published them (a monitor's stream).
Either way a loss among them is a row of its own in its place. Everything is done column by column.

Knows neither where messages come from nor where rows go.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sbus.client.inbox import Lost
from sbus.client.message_joiner import MonitoredMessage
from sbus.pipeline.arrow_columns import of_bytes, of_numbers, of_values, repeated
from sbus.pipeline.schemas import GAP, MESSAGE, MESSAGES, TIMESTAMP
from sbus.pipeline.store import Origin
from sbus.protocol.packets import NUL, PUBLISH_WORD
from sbus.protocol.text import to_text

GAP_PACKET = PUBLISH_WORD + NUL
"""Stands among the packets where some are missing."""
_KEYS_REMEMBERED_MAX = 4096
"""Each may be as long as a bus lets it; 4 KiB by default."""

Losses = Mapping[int, int | None]
"""Which rows are gaps, and how many messages are missing there; None for nobody knows."""


class Batch(NamedTuple):
    """Rows, and between which times they came."""

    rows: pa.RecordBatch
    oldest_us: int
    newest_us: int


@lru_cache(_KEYS_REMEMBERED_MAX)
def _key_of(head: bytes) -> bytes:
    """The key as text, in UTF-8, of a packet of which this is everything before the NUL."""
    return to_text(head[len(PUBLISH_WORD) :]).encode()


def of_packets(
    origin: Origin,
    first_offset: int,
    packets: Sequence[bytes],
    stamps_ns: Sequence[int],
    losses: Losses,
) -> Batch:
    """Packets, `GAP_PACKET` at the places of losses, and when each came, in ns since 1970."""
    parts = [packet.partition(NUL) for packet in packets]
    return _batch(
        origin,
        first_offset,
        np.fromiter(stamps_ns, np.int64, len(stamps_ns)) // 1000,
        losses,
        {
            "key": of_bytes([_key_of(head) for head, _, _ in parts], pa.string()),
            "value": of_bytes([value for _, _, value in parts], pa.binary()),
        },
    )


def of_monitored(
    origin: Origin, first_offset: int, items: Sequence[MonitoredMessage | Lost], now_us: int
) -> Batch:
    """Messages with their publishers, as a monitor's stream tells them; losses are stamped with
    `now_us`."""
    losses = {at: item.count for at, item in enumerate(items) if isinstance(item, Lost)}
    messages = [None if isinstance(item, Lost) else item for item in items]
    stamps_us = [now_us if m is None else round(m.time * 1e6) for m in messages]
    payloads = [b"" if m is None else m.payload for m in messages]
    is_seen = None
    if None in payloads:
        is_seen = np.fromiter((payload is not None for payload in payloads), bool, len(payloads))
    columns = {
        "key": of_bytes([b"" if m is None else m.key.encode() for m in messages], pa.string()),
        "value": of_bytes([payload or b"" for payload in payloads], pa.binary(), is_seen),
    }
    for name in ("client", "uid", "gid", "pid", "program", "recipients"):
        values = [None if m is None else getattr(m, name) for m in messages]
        columns[name] = of_values(values, MESSAGES.field(name).type)
    stamps = np.fromiter(stamps_us, np.int64, len(stamps_us))
    return _batch(origin, first_offset, stamps, losses, columns)


def _batch(
    origin: Origin,
    first_offset: int,
    stamps_us: "np.ndarray[Any, np.dtype[np.int64]]",
    losses: Losses,
    columns: dict[str, pa.Array],
) -> Batch:
    """A batch with these columns; those that it has not are null."""
    count = len(stamps_us)
    columns.update(
        kind=repeated(MESSAGE, count),
        lost=pa.nulls(count, pa.int64()),
        **origin_columns(origin, count),
        offset=of_numbers(np.arange(first_offset, first_offset + count), pa.int64()),
        timestamp=of_numbers(stamps_us, TIMESTAMP),
    )
    if losses:
        kinds = [GAP if at in losses else MESSAGE for at in range(count)]
        columns["kind"] = of_values(kinds, pa.string())
        columns["lost"] = of_values([losses.get(at) for at in range(count)], pa.int64())
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in MESSAGES
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)
    return Batch(rows, int(stamps_us.min()), int(stamps_us.max()))


def origin_columns(origin: Origin, count: int) -> dict[str, pa.Array]:
    """The columns that are the same in every row of a recorder."""
    return {name: repeated(getattr(origin, name), count) for name in ("recorder", "host", "bus")}
