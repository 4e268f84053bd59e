"""What crosses between bridges: messages with their origin and number.

A message has the number that its origin's bridge gave it in its channel. These numbers have no
gaps in an *epoch*, which the bridge begins anew whenever it cannot tell how many messages it has
missed. Over NATS, all of that travels in the subject and in one header:

    PREFIX.m.CHANNEL.ORIGIN.KEY      Sbus: 1 EPOCH NUMBER VIA HOST UID PROGRAM
    PREFIX.m.CHANNEL.ORIGIN          the same: a *heartbeat*, NUMBER is the last one; or, with a
                                     payload, a *frame* (`frames.py`), NUMBER is its first one

VIA is the bridge that has published it there, which may be another one than the origin's. HOST, UID
and PROGRAM are the publisher, as the origin claims.
"""

import re
from typing import Final

import msgspec

from sbus.bridge.subjects import decode_token, encode_token

HEADER: Final = "Sbus"
VERSION: Final = "1"
NOBODY: Final = "= = ="
"""The claim of a heartbeat."""
EPOCH = re.compile("[0-9a-f]{1,32}")
ORIGIN = re.compile("[0-9A-Za-z_-]{1,64}")
_NUMBER = re.compile("[0-9]{1,19}")
NUMBER_MAX: Final = 2**63 - 1


class EnvelopeError(ValueError):
    """A header that this bridge cannot read; the text says why, for people."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """The header of a message."""

    epoch: str
    number: int
    via: str
    claim: str = NOBODY
    """Encoded, because few want to know it."""


class Claim(msgspec.Struct, frozen=True):
    """Who has published a message, by the word of its origin."""

    host: str
    uid: int | None
    program: str


class Crossing(msgspec.Struct, frozen=True, gc=False):
    """A message between buses."""

    channel: str
    origin: str
    envelope: Envelope
    key: bytes
    payload: bytes


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """The number of the last message."""

    channel: str
    origin: str
    envelope: Envelope


def encode_envelope(envelope: Envelope) -> str:
    return f"{VERSION} {envelope.epoch} {envelope.number} {envelope.via} {envelope.claim}"


def decode_envelope(text: str) -> Envelope:
    """Raises EnvelopeError."""
    parts = text.split(" ", 4)
    if parts[0] != VERSION:
        raise EnvelopeError(
            f"it speaks version {parts[0][:20]!r} of the bridges' protocol, and this one {VERSION}"
        )
    if len(parts) == 5:
        _, epoch, number, via, claim = parts
        if EPOCH.fullmatch(epoch) and _NUMBER.fullmatch(number) and int(number) <= NUMBER_MAX:
            return Envelope(epoch, int(number), via, claim)
    raise EnvelopeError(f"its header is no envelope: {text[:80]!r}")


def encode_claim(claim: Claim) -> str:
    host, program = (encode_token(name.encode()) for name in (claim.host, claim.program))
    return f"{host} {'=' if claim.uid is None else claim.uid} {program}"


def decode_claim(text: str) -> Claim:
    """What is not readable is empty."""
    host, uid, program = [*text.split(" "), "=", "=", "="][:3]
    number = int(uid) if uid.isascii() and uid.isdigit() and len(uid) < 11 else None
    return Claim(_text(host), number, _text(program))


def _text(token: str) -> str:
    return (decode_token(token) or b"").decode(errors="backslashreplace")
