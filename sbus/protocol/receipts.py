"""Receipts: the control messages that tell a publisher how many clients received a message.

CMSG !/publish\\0TOKEN\\0key\\0payload      publish a message, and ask for a receipt
CMSG !/receipt\\0TOKEN\\0SENT WAITING LOST  how many clients have it, wait for it, have lost it
CMSG !/receipt\\0TOKEN\\0?                  it has its place; the numbers are not known
CMSG !/receipt\\0TOKEN\\0refused CODE text  it was not published
"""

from typing import Final, NamedTuple

import msgspec

from sbus.errors import ClientFault, Misbehaviour, ProtocolViolation
from sbus.protocol.packets import NUL, PUBLISH_WORD, encode_control

PUBLISH: Final = b"!/publish"
RECEIPT: Final = b"!/receipt"
TOKEN_BYTES_MAX: Final = 64
_PUBLISH_BEGIN = encode_control(PUBLISH, b"")
_RECEIPT_BEGIN = encode_control(RECEIPT, b"")
_UNKNOWN, _REFUSED = b"?", b"refused "
_DIGITS_MAX = 20


class Counts(NamedTuple):
    """Of clients, when the message was delivered."""

    sent: int
    """It is in their sockets."""
    waiting: int
    """It is in their backlogs."""
    lost: int
    """It was dropped, as they or their limits had it."""


class Request(msgspec.Struct, frozen=True):
    """To publish a message; `packet` is that of the message."""

    token: bytes
    key: bytes
    packet: bytes


class Receipt(msgspec.Struct, frozen=True):
    """What has become of a message when every worker of the bus had done its part."""

    sent: int | None
    """Clients that have it in their sockets; None if a worker died, so that no number is known."""
    waiting: int | None
    """Clients for which it waits, because their sockets are full."""
    lost: int | None
    """Clients that have lost it, because they did not read."""

    @property
    def has_listeners(self) -> bool:
        """Whether it was meant for anybody, or may have been."""
        return (self.sent, self.waiting, self.lost) != (0, 0, 0)


def parse_request(payload: bytes) -> Request:
    """What a client asks for. Raises Misbehaviour `bad-token`, `no-nul`."""
    token, _, message = payload.partition(NUL)
    if not 1 <= len(token) <= TOKEN_BYTES_MAX:
        raise Misbehaviour("bad-token", f"a token has 1 to {TOKEN_BYTES_MAX} bytes")
    key, nul, _ = message.partition(NUL)
    if not nul:
        raise Misbehaviour("no-nul", "a message needs a NUL after its key")
    return Request(token, key, PUBLISH_WORD + message)


def token_of(packet: bytes) -> bytes:
    """The token in a packet that asks for this, whose end may be missing; empty for others."""
    if not packet.startswith(_PUBLISH_BEGIN):
        return b""
    return packet.removeprefix(_PUBLISH_BEGIN).partition(NUL)[0]


def receipt(token: bytes, counts: Counts | None) -> bytes:
    """The receipt for a message that has its place; None: the numbers are not known."""
    text = _UNKNOWN if counts is None else b"%d %d %d" % counts
    return encode_control(RECEIPT, token + NUL + text)


def told_in(packet: bytes) -> tuple[bytes, Counts | None] | None:
    """Token and numbers, if this packet of the bus is the receipt for a message with its place."""
    if not packet.startswith(_RECEIPT_BEGIN):
        return None
    token, told = parse_receipt(packet.removeprefix(_RECEIPT_BEGIN))
    if not isinstance(told, Receipt):
        return None
    if told.sent is None or told.waiting is None or told.lost is None:
        return token, None
    return token, Counts(told.sent, told.waiting, told.lost)


def refused(token: bytes, fault: ClientFault) -> bytes:
    """The receipt for a message that was not published."""
    text = f"{fault.code} {fault.text}".encode(errors="backslashreplace")
    return encode_control(RECEIPT, token + NUL + _REFUSED + text)


def parse_receipt(payload: bytes) -> tuple[bytes, Receipt | tuple[str, str]]:
    """The token, and the receipt, or the code and text of a refusal. Raises ProtocolViolation."""
    token, nul, text = payload.partition(NUL)
    if text.startswith(_REFUSED):
        code, _, why = text.removeprefix(_REFUSED).decode(errors="backslashreplace").partition(" ")
        return token, (code, why)
    if text == _UNKNOWN:
        return token, Receipt(None, None, None)
    numbers = text.split(b" ")
    if nul and len(numbers) == 3 and all(it.isdigit() and len(it) <= _DIGITS_MAX for it in numbers):
        return token, Receipt(*map(int, numbers))
    raise ProtocolViolation(f"the bus sent an invalid receipt: {payload[:80]!r}")
