"""What a bridge tells of itself, over the bus, to `sbusctl bridges`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from sbus.bridge.ledger import LedgerCounts
from sbus.errors import ProtocolViolation


class ChannelStatus(msgspec.Struct):
    """A channel, since the bridge was started; its reader and its publisher keep this."""

    name: str
    patterns: list[str]
    filters: list[str]
    """What a client of NATS subscribes to for these patterns, below PREFIX.m.CHANNEL.ORIGIN."""
    is_reading: bool = False
    exported: int = 0
    lost_locally: int = 0
    """Messages that the local bus has dropped for the bridge."""
    imported: int = 0
    refused: int = 0
    """Imported messages with keys that are none of the channel's here, or that are too long."""


class OriginStatus(msgspec.Struct, frozen=True):
    """What has come of one channel of another bus."""

    channel: str
    origin: str
    held: int
    behind: int
    """Messages that a way has told of, and that are not delivered yet."""
    ways: list[str]
    """Link and bridge, of each that is heard."""
    counts: LedgerCounts


class Traffic(msgspec.Struct, kw_only=True):
    """The messages of a link, or of a durable channel."""

    sent: int = 0
    received: int = 0
    sent_per_second: int = 0
    received_per_second: int = 0
    """Both in the last second."""
    counted: tuple[int, int] = (0, 0)
    """Sent and received, when that began."""
    given_up: dict[str, int] = {}
    """By pattern: messages for which there was no room, or that cannot be sent."""

    def give_up(self, pattern: str) -> None:
        """Count a message."""
        self.given_up[pattern] = self.given_up.get(pattern, 0) + 1

    def end_second(self) -> None:
        """Keep the rates of the second that ends now."""
        sent, received = self.counted
        self.sent_per_second, self.received_per_second = self.sent - sent, self.received - received
        self.counted = (self.sent, self.received)


class Peer(msgspec.Struct):
    """A bridge that imports from this link."""

    origin: Annotated[str, Meta(max_length=64)]
    host: Annotated[str, Meta(max_length=255)]
    version: Annotated[str, Meta(max_length=64)]
    heard: float = 0.0


class LinkStatus(Traffic):
    """A link, which keeps this itself."""

    name: str
    exports: list[str]
    imports: list[str]
    prefix: str = ""
    """Of its subjects; "" for a bus."""
    state: str = "not connected yet"
    is_reading: bool = False
    """Whether what it imports would come now."""
    sessions: int = 0
    """How often it was connected."""
    bad: int = 0
    """Messages that are none of a bridge's."""
    waiting_bytes: int = 0
    peers: list[str] = []
    """Those that import, as `HOST (ORIGIN)`."""
    wanted: set[str] = set()
    """Channels that somebody imports."""


class DurableStatus(Traffic):
    """A durable channel, whose exporter and importer keep this."""

    channel: str
    is_importing: bool = False
    behind: int = 0
    """Messages of the stream that are not received yet."""
    spool_bytes: int = 0


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
    origins_left_out: int


def decode_status(data: bytes) -> BridgeStatus:
    """Raises ProtocolViolation."""
    try:
        return msgspec.json.decode(data, type=BridgeStatus)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"the bridge sent an invalid status: {error}") from error
