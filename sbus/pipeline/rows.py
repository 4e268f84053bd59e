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
def _key_of(head: bytes) -> str:
    """The key of a packet of which this is everything before the NUL."""
    return to_text(head[len(PUBLISH_WORD) :])


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
            "key": pa.array([_key_of(head) for head, _, _ in parts], pa.string()),
            "value": pa.array([value for _, _, value in parts], pa.binary()),
        },
    )


_UNKNOWN = MonitoredMessage(
    time=0.0,
    order=0,
    key="",
    size=0,
    payload=b"",
    recipients=None,
    client=0,
    uid=0,
    gid=0,
    pid=0,
    program="",
    worker=0,
)


def of_monitored(
    origin: Origin, first_offset: int, items: Sequence[MonitoredMessage | Lost], now_us: int
) -> Batch:
    """Messages with their publishers, as a monitor's stream tells them; losses are stamped
    with `now_us`."""
    losses = {at: item.count for at, item in enumerate(items) if isinstance(item, Lost)}
    messages = [_UNKNOWN if isinstance(item, Lost) else item for item in items]
    stamps_us = np.fromiter((round(m.time * 1e6) for m in messages), np.int64, len(messages))
    stamps_us[list(losses)] = now_us
    known = np.ones(len(messages), bool)
    known[list(losses)] = False

    def column(name: str, kind: pa.DataType) -> pa.Array:
        return pa.array([getattr(m, name) for m in messages], kind, mask=~known if losses else None)

    columns = {
        "key": pa.array([m.key for m in messages], pa.string()),
        "value": pa.array([m.payload for m in messages], pa.binary()),
        **{name: column(name, pa.int64()) for name in ("client", "uid", "gid", "pid")},
        "program": column("program", pa.string()),
        "recipients": column("recipients", pa.int64()),
    }
    return _batch(origin, first_offset, stamps_us, losses, columns)


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
        kind=pa.repeat(MESSAGE, count),
        lost=pa.nulls(count, pa.int64()),
        **origin_columns(origin, count),
        offset=pa.array(np.arange(first_offset, first_offset + count)),
        timestamp=pa.array(stamps_us).cast(TIMESTAMP),
    )
    if losses:
        columns["kind"] = pa.array([GAP if at in losses else MESSAGE for at in range(count)])
        columns["lost"] = pa.array([losses.get(at) for at in range(count)], pa.int64())
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in MESSAGES
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)
    return Batch(rows, int(stamps_us.min()), int(stamps_us.max()))


def origin_columns(origin: Origin, count: int) -> dict[str, pa.Array]:
    """The columns that are the same in every row of a recorder."""
    return {name: pa.repeat(getattr(origin, name), count) for name in ("recorder", "host", "bus")}
