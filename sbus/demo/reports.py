"""What the demo's processes tell the one that started them, as lines of JSON on standard output.

A publisher reports each message once it has handed it to the bus; a subscriber reports that its
subscription holds, each message it gets, and what the bus said it lost. Knows no bus and no pipe.
"""

import sys

import msgspec


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The subscription is in force: whatever is published from now on arrives."""


class Published(msgspec.Struct, frozen=True, tag="published"):
    key: bytes
    payload: bytes


class Received(msgspec.Struct, frozen=True, tag="received"):
    key: bytes
    payload: bytes


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The bus dropped `count` messages here; None when it does not know how many."""

    count: int | None


Report = Ready | Published | Received | Lost

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(report: Report) -> bytes:
    """One line, its newline included; JSON holds no other."""
    return _encoder.encode(report) + b"\n"


def decode(line: bytes) -> Report:
    """The report of one line; `msgspec.DecodeError` when it is none."""
    return _decoder.decode(line)


def tell(report: Report) -> None:
    """Report to whoever started this process, at once."""
    sys.stdout.buffer.write(encode(report))
    sys.stdout.buffer.flush()
