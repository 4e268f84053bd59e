"""Rows of the table `messages`, a batch at a time, made column by column.

Messages come as packets from a subscription, or with their publishers from the monitor's stream. A
loss among them becomes a row of its own in its place.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from sbus.client.inbox import Lost
from sbus.client.message_joiner import MonitoredMessage
from sbus.pipeline.store.row_batches import Losses, RecorderIdentity, RowBatch, message_batch
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
    identity: RecorderIdentity,
    first_offset: int,
    packets: Sequence[bytes],
    stamps_ns: Sequence[int],
    losses: Losses,
) -> RowBatch:
    """Rows of packets, with `GAP_PACKET` at the places of losses, and of their times of arrival."""
    parts = [packet.partition(NUL) for packet in packets]
    columns = {
        "key": pa.array([_key_of(head) for head, _, _ in parts], pa.string()),
        "value": pa.array([value for _, _, value in parts], pa.binary()),
    }
    stamps_us = np.fromiter(stamps_ns, np.int64, len(stamps_ns)) // 1000
    return message_batch(identity, first_offset, stamps_us, columns, losses)


def of_monitored(
    identity: RecorderIdentity,
    first_offset: int,
    items: Sequence[MonitoredMessage | Lost],
    now_us: int,
) -> RowBatch:
    """Rows of messages with their publishers; losses get the timestamp `now_us`."""
    losses = {at: item.count for at, item in enumerate(items) if isinstance(item, Lost)}
    messages = [None if isinstance(item, Lost) else item for item in items]
    columns = {
        "key": pa.array(["" if m is None else m.key for m in messages], pa.string()),
        "value": pa.array([b"" if m is None else m.payload for m in messages], pa.binary()),
    }
    for name in ("client", "uid", "gid", "pid", "program", "recipients"):
        values = [None if m is None else getattr(m, name) for m in messages]
        columns[name] = pa.array(values, MESSAGES.field(name).type)
    stamps = (now_us if m is None else round(m.time * 1e6) for m in messages)
    stamps_us = np.fromiter(stamps, np.int64, len(messages))
    return message_batch(identity, first_offset, stamps_us, columns, losses)
