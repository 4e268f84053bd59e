"""Encoding and parsing packets (docs/protocol.md, "Transport").

A packet is a word, one space, a key or pattern up to the first NUL, and a payload after it. Parsing
cuts a packet there and changes no byte. Keys and patterns are checked in `keys.py`.
"""

import re
from typing import Final

import msgspec

from sbus.errors import Misbehaviour, ProtocolViolation
from sbus.protocol.keys import Dialect

NUL: Final = b"\0"
SUBSCRIBE_WORD: Final = b"SUB "
UNSUBSCRIBE_WORD: Final = b"UNSUB "
PUBLISH_WORD: Final = b"MSG "
CONTROL_WORD: Final = b"CMSG "
FROM_KEY: Final = b"!/from"
"""Of a message with its sender, for a client that wants to know it."""

_FROM = re.compile(rb"%bMSG ([^\0]*)\0(.*)" % (rb"([0-9]{1,20}) " * 5), re.DOTALL)
_PUBLISH_KEY_AT = len(PUBLISH_WORD)
_CONTROL_KEY_AT = len(CONTROL_WORD)


class Subscribe(msgspec.Struct, frozen=True):
    """A client subscribes to `pattern`, once more than before."""

    pattern: bytes


class Unsubscribe(msgspec.Struct, frozen=True):
    """A client removes one of its subscriptions to `pattern`."""

    pattern: bytes


class Publish(msgspec.Struct, frozen=True):
    """A client publishes a message; `packet` is all of it."""

    key: bytes
    packet: bytes


class Control(msgspec.Struct, frozen=True):
    """A control message from a client; `payload` is b"" if there was none."""

    key: bytes
    payload: bytes


class Sender(msgspec.Struct, frozen=True):
    """Who has published a message, by the kernel's word, and its place in the total order."""

    place: int
    """Of two messages, the one with the smaller place came first, for all clients."""
    client: int
    """The number of the publisher's connection."""
    gid: int
    uid: int
    pid: int


class Message(msgspec.Struct, frozen=True):
    """A published message, as a client receives it."""

    key: bytes
    payload: bytes
    sender: Sender | None = None
    """If the client has asked for it."""


class ControlMessage(msgspec.Struct, frozen=True):
    """A control message from the bus: a reply or a notice."""

    key: bytes
    payload: bytes


def parse_client_packet(
    packet: bytes, dialect: Dialect
) -> Subscribe | Unsubscribe | Publish | Control:
    """Parse a packet from a client. Raises Misbehaviour `empty-packet`, `no-nul` (a `MSG` whose key
    does not end) or `unknown-word`, which includes `CMSG` in a dialect without control messages."""
    if packet.startswith(PUBLISH_WORD):
        key_end = packet.find(NUL, _PUBLISH_KEY_AT)
        if key_end < 0:
            raise Misbehaviour("no-nul", "a MSG packet needs a NUL after its key")
        return Publish(packet[_PUBLISH_KEY_AT:key_end], packet)
    if packet.startswith(SUBSCRIBE_WORD):
        return Subscribe(packet[len(SUBSCRIBE_WORD) :].partition(NUL)[0])
    if packet.startswith(UNSUBSCRIBE_WORD):
        return Unsubscribe(packet[len(UNSUBSCRIBE_WORD) :].partition(NUL)[0])
    if packet.startswith(CONTROL_WORD) and dialect.has_control_messages:
        key, _, payload = packet[_CONTROL_KEY_AT:].partition(NUL)
        return Control(key, payload)
    if not packet:
        raise Misbehaviour("empty-packet", "a packet needs at least a word")
    raise Misbehaviour("unknown-word", f"the {dialect.name} dialect has no such packet")


def parse_server_packet(packet: bytes) -> Message | ControlMessage:
    """Parse a packet from the bus; raises ProtocolViolation for any other packet."""
    if packet.startswith(PUBLISH_WORD):
        key, nul, payload = packet[_PUBLISH_KEY_AT:].partition(NUL)
        if nul:
            return Message(key, payload)
    elif packet.startswith(CONTROL_WORD):
        key, nul, payload = packet[_CONTROL_KEY_AT:].partition(NUL)
        if key == FROM_KEY:
            return _parse_from(payload)
        if nul:
            return ControlMessage(key, payload)
    raise ProtocolViolation(f"the bus sent an invalid packet: {packet[:32]!r}")


def _parse_from(payload: bytes) -> Message:
    """A message with its sender: five numbers, then the packet as it was published."""
    found = _FROM.fullmatch(payload)
    if found is None:
        raise ProtocolViolation(f"the bus sent an invalid sender: {payload[:32]!r}")
    place, client, gid, uid, pid, key, content = found.groups()
    return Message(key, content, Sender(int(place), int(client), int(gid), int(uid), int(pid)))


def encode_subscribe(pattern: bytes) -> bytes:
    """The `SUB` packet; raises ValueError when `pattern` contains a NUL."""
    return SUBSCRIBE_WORD + _without_nul(pattern)


def encode_unsubscribe(pattern: bytes) -> bytes:
    """The `UNSUB` packet; raises ValueError when `pattern` contains a NUL."""
    return UNSUBSCRIBE_WORD + _without_nul(pattern)


def undone(packet: bytes) -> bytes:
    """The `UNSUB` packet that undoes this `SUB`."""
    return UNSUBSCRIBE_WORD + packet.removeprefix(SUBSCRIBE_WORD)


def encode_publish(key: bytes, payload: bytes) -> bytes:
    """The `MSG` packet; raises ValueError when `key` contains a NUL."""
    return b"%b%b\0%b" % (PUBLISH_WORD, _without_nul(key), payload)


def encode_control(key: bytes, payload: bytes | None = None) -> bytes:
    """The `CMSG` packet; raises ValueError when `key` contains a NUL. Without `payload` it has no
    NUL, which only clients may send."""
    if payload is None:
        return CONTROL_WORD + _without_nul(key)
    return b"%b%b\0%b" % (CONTROL_WORD, _without_nul(key), payload)


def _without_nul(key_or_pattern: bytes) -> bytes:
    if NUL in key_or_pattern:
        raise ValueError(f"a NUL cannot be part of a key or pattern: {key_or_pattern[:32]!r}")
    return key_or_pattern
