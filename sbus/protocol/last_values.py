"""What a service of last values and its joiners send each other, as requests and answers.

A joiner subscribes to a pattern and to its key for requests, `last-values/PATTERN`, and publishes a
request there. It receives this request itself, too: in the one order of the bus, that is the place
at which the service takes the snapshot.

    answer    TOKEN\0STATE SERVICE NUMBER MISSING\0values

STATE is `more` or `end`. SERVICE names the one that answers, as there may be several. NUMBER counts
the answers from 0. MISSING says how many messages the service has not kept, or `?`. The values are
pairs of key and payload in MessagePack, the one that has not changed for the longest time first.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sbus.errors import ProtocolViolation
from sbus.protocol.packets import NUL

PREFIX: Final = b"last-values/"
PART_BYTES: Final = 32_768
"""A part ends with the value that makes it as long as this."""
_DIGITS_MAX: Final = 20

Values = list[tuple[bytes, bytes]]

_decoder = msgspec.msgpack.Decoder(Values)
_encoder = msgspec.msgpack.Encoder()


class Part(msgspec.Struct, frozen=True):
    """One of the answers that make a snapshot."""

    is_last: bool
    service: bytes
    number: int
    missing: int | None
    values: Values


def request_key(pattern: bytes) -> bytes:
    """Of requests for the last values of this pattern; also the pattern for such requests."""
    return PREFIX + pattern


def encode_snapshot(
    values: Iterable[tuple[bytes, bytes]], service: bytes, missing: int | None
) -> Iterator[bytes]:
    """The payloads of the parts, without their tokens."""
    number = size = 0
    part: Values = []
    for value in values:
        part.append(value)
        size += len(value[0]) + len(value[1])
        if size >= PART_BYTES:
            yield _encode(Part(False, service, number, missing, part))
            number, size, part = number + 1, 0, []
    yield _encode(Part(True, service, number, missing, part))


def _encode(part: Part) -> bytes:
    state = b"end" if part.is_last else b"more"
    missing = b"?" if part.missing is None else b"%d" % part.missing
    head = b"%b %b %d %b" % (state, part.service, part.number, missing)
    return head + NUL + _encoder.encode(part.values)


def parse_part(payload: bytes) -> Part:
    """Raises ProtocolViolation."""
    head, _, rest = payload.partition(NUL)
    words = head.split(b" ")
    if len(words) != 4 or words[0] not in (b"more", b"end"):
        raise ProtocolViolation(f"no part of a snapshot: {payload[:64]!r}")
    state, service, number, missing = words
    for text in (number, missing):
        if not (text.isdigit() and len(text) <= _DIGITS_MAX) and text != b"?":
            raise ProtocolViolation(f"no part of a snapshot: {payload[:64]!r}")
    if number == b"?":
        raise ProtocolViolation(f"a part of a snapshot without its number: {payload[:64]!r}")
    try:
        values = _decoder.decode(rest)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"a snapshot whose values cannot be read: {error}") from error
    lost = None if missing == b"?" else int(missing)
    return Part(state == b"end", service, int(number), lost, values)
