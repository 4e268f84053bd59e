"""Requests and answers between a service of last values and its joiners.

A joiner subscribes to a pattern and to its key for requests, `last-values/PATTERN`, and publishes a
request there. The joiner receives this request, too: its place in the one order of the bus is that
of the service's snapshot.

    answer    TOKEN\0STATE SNAPSHOT NUMBER MISSING\0values

STATE is `more` or `end`. SNAPSHOT identifies the snapshot, because several services may answer; it
cannot be guessed. NUMBER counts the answers from 0. MISSING is the number of messages that match
the pattern and that the service has not kept, or `?`. The values are pairs of key and payload in
MessagePack, the one that has not changed for the longest time first.

A client with too many waiting requests gets a failure with the text `ask again`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sbus.errors import ProtocolViolation
from sbus.protocol.packets import NUL

PREFIX: Final = b"last-values/"
ASK_AGAIN: Final = b"ask again"
PART_BYTES: Final = 32_768
"""A part that is as long as this has no more values."""
_FRAME_BYTES: Final = 512
"""In the packet of a part, all but its values has fewer bytes."""
_VALUE_FRAME_BYTES: Final = 11
"""At most so many bytes are added to a key and its payload."""
_HEAD: Final = re.compile(rb"(more|end) ([^ ]*) ([0-9]{1,20}) ([0-9]{1,20}|\?)")

Values = list[tuple[bytes, bytes]]

_decoder = msgspec.msgpack.Decoder(Values)
_encoder = msgspec.msgpack.Encoder()


class Part(msgspec.Struct, frozen=True):
    """One of the answers that make a snapshot."""

    is_last: bool
    snapshot: bytes
    number: int
    missing: int | None
    values: Values


def request_key(pattern: bytes) -> bytes:
    """Of requests for the last values of this pattern; also the pattern for such requests."""
    return PREFIX + pattern


def fits_part(key: bytes, payload: bytes, packet_bytes_max: int) -> bool:
    """Whether a value can be sent in a part of its own."""
    return len(key) + len(payload) <= _values_bytes_max(packet_bytes_max) - _VALUE_FRAME_BYTES


def _values_bytes_max(packet_bytes_max: int) -> int:
    return packet_bytes_max - _FRAME_BYTES


def encode_snapshot(
    values: Iterable[tuple[bytes, bytes]],
    snapshot: bytes,
    missing: int | None,
    packet_bytes_max: int,
) -> Iterator[bytes]:
    """The payloads of the parts, without their tokens; each value is one that `fits_part`."""
    number = size = 0
    part: Values = []
    longest = _values_bytes_max(packet_bytes_max)
    for key, payload in values:
        value_bytes = len(key) + len(payload) + _VALUE_FRAME_BYTES
        if part and (size >= PART_BYTES or size + value_bytes > longest):
            yield _encode(Part(False, snapshot, number, missing, part))
            number, size, part = number + 1, 0, []
        part.append((key, payload))
        size += value_bytes
    yield _encode(Part(True, snapshot, number, missing, part))


def _encode(part: Part) -> bytes:
    state = b"end" if part.is_last else b"more"
    missing = b"?" if part.missing is None else b"%d" % part.missing
    head = b"%b %b %d %b" % (state, part.snapshot, part.number, missing)
    return head + NUL + _encoder.encode(part.values)


def parse_part(payload: bytes) -> Part:
    """Raises ProtocolViolation."""
    head, _, rest = payload.partition(NUL)
    found = _HEAD.fullmatch(head)
    if found is None:
        raise ProtocolViolation(f"no part of a snapshot: {payload[:64]!r}")
    state, snapshot, number, missing = found.groups()
    try:
        values = _decoder.decode(rest)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"a snapshot whose values cannot be read: {error}") from error
    lost = None if missing == b"?" else int(missing)
    return Part(state == b"end", snapshot, int(number), lost, values)
