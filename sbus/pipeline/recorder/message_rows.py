"""Rows of the table `messages`, a batch at a time, made column by column.

Messages come as packets from a subscription, with their publishers from the monitor's stream, or
from other buses. A loss among them becomes a row of its own in its place.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sbus.bridge.envelope import Crossing, decode_claim
from sbus.bridge.ledger import Gap
from sbus.client.message_joiner import MissedItems, MonitoredBatch
from sbus.client.message_queue import Lost
from sbus.pipeline.store.row_batches import Losses, message_batch
from sbus.pipeline.store.schemas import MESSAGES
from sbus.protocol.packets import NUL, PUBLISH_WORD
from sbus.protocol.text import to_text

GAP_PACKET = PUBLISH_WORD + NUL
"""Stands among the packets where some are missing."""
_CACHED_KEYS_MAX = 4096
"""A key is as long as a bus allows, 4 KiB by default."""


@lru_cache(_CACHED_KEYS_MAX)
def _key_of(head: bytes) -> str:
    """The key of a packet with these bytes before the NUL."""
    return to_text(head[len(PUBLISH_WORD) :])


def of_packets(
    first_offset: int,
    packets: Sequence[bytes],
    stamps_ns: Sequence[int],
    losses: Losses,
) -> pa.RecordBatch:
    """Rows of packets, with `GAP_PACKET` at the places of losses, and of their times of arrival."""
    parts = [packet.partition(NUL) for packet in packets]
    columns = {
        "key": pa.array([_key_of(head) for head, _, _ in parts], pa.string()),
        "value": pa.array([value for _, _, value in parts], pa.binary()),
    }
    stamps_us = np.fromiter(stamps_ns, np.int64, len(stamps_ns)) // 1000
    return message_batch(first_offset, stamps_us, columns, losses)


def of_monitored(
    first_offset: int,
    items: Sequence[MonitoredBatch | MissedItems | Lost],
    now_us: int,
) -> pa.RecordBatch:
    """Rows of messages with their publishers; losses get the timestamp `now_us`."""
    keys: list[str] = []
    sizes: list[int | None] = []
    recipients: list[int | None] = []
    payloads: list[bytes] = []
    counts: list[int] = []
    losses: dict[int, int | None] = {}
    for item in items:
        if isinstance(item, MonitoredBatch):
            keys += item.keys
            sizes += item.sizes
            recipients += item.recipients
            payloads += item.payloads
            counts.append(len(item.keys))
        else:
            losses[len(keys)] = item.count
            keys.append("")
            sizes.append(0)
            recipients.append(None)
            counts.append(1)
    columns = {
        "key": pa.array(keys, pa.string()),
        "value": _of_joined(b"".join(payloads), sizes),
        "recipients": pa.array(recipients, pa.int64()),
    }
    packets = [item.packet if isinstance(item, MonitoredBatch) else None for item in items]
    of_item = pa.array(np.repeat(np.arange(len(items)), counts))
    for name in ("client", "uid", "gid", "pid", "program"):
        values = [None if packet is None else getattr(packet, name) for packet in packets]
        columns[name] = pa.array(values, MESSAGES.field(name).type).take(of_item)
    stamps = [now_us if packet is None else round(packet.time * 1e6) for packet in packets]
    stamps_us = np.repeat(np.array(stamps, np.int64), counts)
    return message_batch(first_offset, stamps_us, columns, losses)


class Arrival(NamedTuple):
    """A row of a message of another bus, or of a gap; what is unknown is as in a gap."""

    epoch: str
    number: int | None
    stamp_us: int
    gap: Gap | None = None
    key: str = ""
    value: bytes = b""
    host: str = ""
    uid: int | None = None
    program: str | None = None


def arrivals(items: Sequence[Crossing | Gap], epoch: str, stamp_us: int) -> list[Arrival]:
    """What a ledger has delivered at once, which is in this epoch now. A gap is of the epoch of the
    message behind it, and its number is that of the last message that is missing."""
    found: list[Arrival] = []
    for item in reversed(items):
        if isinstance(item, Gap):
            last = None if item.count is None else item.first + item.count - 1
            found.append(Arrival(epoch, last, stamp_us, item))
        else:
            epoch, claim = item.envelope.epoch, decode_claim(item.envelope.claim)
            message = (
                to_text(item.key),
                item.payload,
                claim.host,
                claim.uid,
                claim.program or None,
            )
            found.append(Arrival(epoch, item.envelope.number, stamp_us, None, *message))
    return found[::-1]


def of_arrivals(first_offset: int, rows: Sequence[Arrival]) -> pa.RecordBatch:
    """Rows of what has arrived of another bus."""
    columns = {
        name: pa.array([getattr(row, name) for row in rows], MESSAGES.field(name).type)
        for name in ("key", "value", "uid", "program", "epoch", "number")
    }
    losses = {at: row.gap.count for at, row in enumerate(rows) if row.gap is not None}
    stamps_us = np.array([row.stamp_us for row in rows], np.int64)
    return message_batch(first_offset, stamps_us, columns, losses)


def _of_joined(data: bytes, sizes: Sequence[int | None]) -> pa.Array:
    """Binary values, one after another in `data`; null where the size is None."""
    known = pa.array(sizes, pa.int32())
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(known.fill_null(0).to_numpy(), out=offsets[1:])
    buffers = [known.buffers()[0], pa.py_buffer(offsets), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
    values.validate()
    return values
