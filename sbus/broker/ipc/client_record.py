"""What a worker has to know of a client that another worker served until now.

A reader accepts every minor version of its major version: fields that it does not know are ignored,
and fields that it misses have defaults.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from sbus.errors import SbusError
from sbus.protocol.controls import FloodControl

VERSION: Final = (1, 0)
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
    flood_control: FloodControl = FloodControl()
    messages_in: int = 0
    bytes_in: int = 0
    refused: int = 0
    accepted: int = 0
    delivered_bytes: int = 0
    dropped: Mapping[str, int] = {}
    """By reason."""


class ClientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The patterns of a client, as they are until `revision` changes."""

    version: tuple[int, int] = VERSION
    revision: int
    """Changes with every subscription of the client, and when it begins to hold publishers."""
    patterns: Mapping[bytes, int] = {}
    """With the number of times that it has subscribed to each."""
    has_backpressure: bool = False
    """Whether it may hold publishers back."""


class UnknownVersion(SbusError):
    """A record was written by another major version."""


_encoder: Final = msgspec.msgpack.Encoder()
_state_decoder: Final = msgspec.msgpack.Decoder(ClientState)


def encode_state(state: ClientState) -> bytes:
    return _encoder.encode(state)


def decode_state(data: bytes) -> ClientState:
    """Raises UnknownVersion."""
    state = _state_decoder.decode(data)
    check_version(state.version)
    return state


def check_version(version: tuple[int, int]) -> None:
    """Raise UnknownVersion unless records of this version can be read."""
    if version[0] != VERSION[0]:
        raise UnknownVersion(f"a record has version {version[0]}.{version[1]}")
