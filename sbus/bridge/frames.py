"""Frames: messages with consecutive numbers as one, because each message of NATS costs time.

The envelope of a frame is that of its first message. Its payload has each claim, key and payload.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from sbus.bridge.envelope import Crossing, Envelope, Heartbeat

FRAME_MIN: Final = 8
"""With fewer that wait, each has its own subject."""
FRAME_MAX: Final = 256
FRAME_BYTES_MAX: Final = 262_144

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes, bytes]]).decode


def first_frame(
    queue: deque[Crossing | Heartbeat], bytes_max: int = FRAME_BYTES_MAX
) -> list[Crossing]:
    """The first of these that can be one of about so many bytes, at least one message; nothing
    before a heartbeat."""
    frame: list[Crossing] = []
    size_bytes = 0
    for item in islice(queue, FRAME_MAX if len(queue) >= FRAME_MIN else 1):
        if not isinstance(item, Crossing) or (frame and not _follows(item, frame[-1])):
            break
        size_bytes += len(item.key) + len(item.payload) + len(item.envelope.claim)
        if frame and size_bytes > bytes_max:
            break
        frame.append(item)
    return frame if len(frame) >= FRAME_MIN else frame[:1]


def _follows(crossing: Crossing, before: Crossing) -> bool:
    one, other = crossing.envelope, before.envelope
    return (
        one.number == other.number + 1
        and (crossing.channel, crossing.origin) == (before.channel, before.origin)
        and (one.epoch, one.via) == (other.epoch, other.via)
    )


def encode_frame(frame: list[Crossing]) -> bytes:
    return _encode([(it.envelope.claim, it.key, it.payload) for it in frame])


def decode_frame(head: Heartbeat, payload: bytes) -> Iterator[Crossing]:
    """The messages of a frame with this head; nothing if it is none."""
    first = head.envelope
    try:
        parts = _decode(payload)
    except msgspec.DecodeError:
        return
    for number, (claim, key, content) in enumerate(parts, first.number):
        envelope = Envelope(first.epoch, number, first.via, claim)
        yield Crossing(head.channel, head.origin, envelope, key, content)
