"""What a bridge tells of itself, over the bus, to `sbusctl bridges`."""

import msgspec

from sbus.errors import ProtocolViolation


class ChannelStatus(msgspec.Struct, frozen=True):
    """A channel: what was exported and imported since the bridge was started."""

    name: str
    patterns: list[str]
    filters: list[str]
    """What a client of NATS subscribes to for these patterns, below PREFIX.m.CHANNEL.ORIGIN."""
    is_reading: bool
    exported: int
    lost_locally: int
    """Messages that the local bus has dropped for the bridge."""
    imported: int
    refused: int
    """Imported messages with keys that are none of the channel's here."""


class OriginStatus(msgspec.Struct, frozen=True):
    """What has come of one channel of another bus."""

    channel: str
    origin: str
    delivered: int
    missing: int
    unknown_gaps: int
    duplicates: int
    held: int
    ways: list[str]
    """Link and bridge, of each that is heard."""


class LinkStatus(msgspec.Struct, frozen=True):
    """A link."""

    name: str
    exports: list[str]
    imports: list[str]
    prefix: str
    state: str
    is_reading: bool
    """Whether what it imports would come now."""
    sessions: int
    sent: int
    received: int
    given_up: dict[str, int]
    """By channel."""
    waiting_bytes: int
    peers: list[str]
    """Those that import, as `HOST (ORIGIN)`."""
    wanted: list[str]
    """Channels that somebody imports."""


class DurableStatus(msgspec.Struct, frozen=True):
    """A durable channel."""

    channel: str
    is_importing: bool
    sent: int
    received: int
    given_up: int
    spool_bytes: int


class BridgeStatus(msgspec.Struct, frozen=True):
    """All of it."""

    version: str
    origin: str
    host: str
    looped: int
    channels: list[ChannelStatus]
    links: list[LinkStatus]
    durable: list[DurableStatus]
    origins: list[OriginStatus]

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decode_status(data: bytes) -> BridgeStatus:
    """Raises ProtocolViolation."""
    try:
        return msgspec.json.decode(data, type=BridgeStatus)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"the bridge sent an invalid status: {error}") from error
