"""What a worker has to know of a client that another one served, at this bus or another.

A reader accepts every minor version of its major version: fields that it does not know are ignored,
and fields that it misses have defaults.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from sbus.errors import SbusError
from sbus.protocol.controls import FloodControl

VERSION: Final = (1, 4)
"""Major and minor."""
PATTERNS_BYTES_MAX: Final = 48 * 1024
"""Of the patterns of a record, which has to fit a packet of a link."""
SUBSCRIPTIONS_MAX: Final = 4_096
"""Of a client that can be moved; every other worker has to read two records for each."""


class ClientState(msgspec.Struct, frozen=True, kw_only=True):
    """What a client has chosen, and what was counted of it, at one place in the total order."""

    version: tuple[int, int] = VERSION
    echo: bool = True
    wants_notices: bool = False
    wants_sender: bool = False
    flood_control: FloodControl = FloodControl()
    messages_in: int = 0
    bytes_in: int = 0
    refused: int = 0
    accepted: int = 0
    delivered_bytes: int = 0
    dropped: Mapping[str, int] = {}
    """By reason."""
    replaced: int = 0
    name: bytes = b""
    will: bytes = b""


class ClientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The patterns of a client, as they are until `revision` changes."""

    version: tuple[int, int] = VERSION
    revision: int
    """Changes with every subscription of the client, and when it begins to hold publishers."""
    patterns: Mapping[bytes, int] = {}
    """With the number of times that it has subscribed to each."""
    has_backpressure: bool = False
    """Whether it may hold publishers back."""


class ReplyRecord(msgspec.Struct, frozen=True, array_like=True):
    """A control message that waits, at its place in a backlog."""

    packet: bytes
    is_reply: bool = False
    """To the client's request, which a successor would carry out again."""


BacklogItem = bytes | int | ReplyRecord
"""A message, how many were dropped at this place, or a reply."""


class BacklogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a client."""

    missing: int = 0
    """Messages that were dropped at no particular place."""
    kept: list[tuple[int, int]] = []
    """Which items of the record before this one still wait: from one number to before another."""
    replaced: Mapping[int, bytes] = {}
    """Messages that have taken the place of some of these, by its number."""
    items: list[BacklogItem] = []
    """Those that have come since, in the order in which they came."""
    came_ms: list[int] = []
    """When each of these came, by CLOCK_MONOTONIC, if the client limits the age of messages; 0 if
    that is not known."""
    replaced_came_ms: Mapping[int, int] = {}
    """Likewise for `replaced`."""
    sorted: int = 0
    """So many of the oldest messages are sorted by size, so nothing replaces them."""


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A client that is disconnected, and has not read everything that was sent to it."""

    reason: str
    notice: bytes = b""
    """Has to be sent before its connection ends; empty if that is done."""


class ClientSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows of a client. A snapshot that is not the first says what has changed of
    the patterns, the pending packets and the backlog; the last one, from a frozen worker, has all
    the rest."""

    client: int
    patterns: Mapping[bytes, int] = {}
    """How many occurrences of each the client has more than before, or fewer."""
    has_backpressure: bool = False
    state: ClientState = ClientState()
    pending_done: int = 0
    """How many of the packets that were pending before are done."""
    pending: list[bytes] = []
    """Packets that were read since and are not done."""
    received_us: int = 0
    """When they were read, by `time.monotonic_ns`."""
    unanswered: bytes = b""
    """The packet that is done but for its reply, if nothing is pending."""
    backlog: BacklogRecord = BacklogRecord()
    is_stalled: bool = False
    """Whether it holds publishers back, or would."""
    has_large_buffer: bool = False
    """Whether the kernel keeps more for it, on its user's account."""
    awaits_self_service: bool = False
    """Whether it has asked what the bus has of its user, and has no answer yet."""
    untold_packets: int = 0
    """How many of its packets were lost with a worker, of which the notice waits."""
    has_unknown_loss: bool = False
    """Whether a notice waits of an unknown number of lost messages."""
    fault: tuple[str, str] | None = None
    """The code and text of the reason for which the client is to be disconnected."""
    departure: Departure | None = None
    """Of a client that is not served any more; nothing else is known of it then."""


class UnknownVersion(SbusError):
    """A record was written by another major version."""


def _plain(value: object) -> bytes:
    """A message of known age, which is bytes of another class."""
    if isinstance(value, bytes):
        return bytes(value)
    raise NotImplementedError(type(value))


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
_state_decoder: Final = msgspec.msgpack.Decoder(ClientState)
_snapshot_decoder: Final = msgspec.msgpack.Decoder(ClientSnapshot)


def encode_state(state: ClientState) -> bytes:
    return _encoder.encode(state)


def decode_state(data: bytes) -> ClientState:
    """Raises UnknownVersion."""
    state = _state_decoder.decode(data)
    check_version(state.version)
    return state


def encode_snapshot(snapshot: ClientSnapshot) -> bytes:
    return _encoder.encode(snapshot)


def decode_snapshot(data: bytes | memoryview) -> ClientSnapshot:
    """The version of a snapshot is that of the file that it is in."""
    return _snapshot_decoder.decode(data)


def check_version(version: tuple[int, int]) -> None:
    """Raise UnknownVersion unless records of this version can be read."""
    if version[0] != VERSION[0]:
        raise UnknownVersion(
            f"records of version {version[0]}.{version[1]} cannot be read here, only {VERSION[0]}.x"
        )
