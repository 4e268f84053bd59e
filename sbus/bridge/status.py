"""What a bridge tells of itself, over the bus, to `sbusctl bridges`."""

from typing import TYPE_CHECKING

import msgspec

from sbus.errors import ProtocolViolation
from sbus.version import __version__

if TYPE_CHECKING:
    from sbus.bridge.bridge import Bridge


class ChannelStatus(msgspec.Struct, frozen=True):
    """A channel: what was exported and imported since the bridge was started."""

    name: str
    patterns: list[str]
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
    state: str
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


class BridgeStatus(msgspec.Struct, frozen=True):
    """All of it."""

    version: str
    origin: str
    host: str
    looped: int
    channels: list[ChannelStatus]
    links: list[LinkStatus]
    origins: list[OriginStatus]

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decode_status(data: bytes) -> BridgeStatus:
    """Raises ProtocolViolation."""
    try:
        return msgspec.json.decode(data, type=BridgeStatus)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"the bridge sent an invalid status: {error}") from error


def status_of(bridge: "Bridge") -> BridgeStatus:
    """As it is now."""
    return BridgeStatus(
        version=__version__,
        origin=bridge.plan.origin,
        host=bridge.plan.host,
        looped=bridge.exchange.looped,
        channels=[_channel(bridge, name) for name in bridge.plan.channels],
        links=[
            LinkStatus(
                name=link.name,
                state=link.state,
                sessions=link.sessions,
                sent=sum(count for channel, count in link.sent.items() if channel),
                received=link.received.total(),
                given_up=dict(link.given_up),
                waiting_bytes=link.waiting_bytes,
                peers=[f"{peer.host} ({peer.origin})" for peer in link.peers.values()],
                wanted=sorted(link.importers),
            )
            for link in bridge.links
        ],
        origins=[
            OriginStatus(
                channel=channel,
                origin=origin,
                delivered=ledger.counts.delivered,
                missing=ledger.counts.missing,
                unknown_gaps=ledger.counts.unknown_gaps,
                duplicates=ledger.counts.duplicates,
                held=ledger.held,
                ways=[f"{link} {via}" for link, via in ledger.ways],
            )
            for channel, ledgers in bridge.exchange.ledgers.items()
            for origin, ledger in ledgers.items()
        ],
    )


def _channel(bridge: "Bridge", name: str) -> ChannelStatus:
    reader = bridge.readers.get(name)
    return ChannelStatus(
        name=name,
        patterns=bridge.plan.channels[name].patterns,
        is_reading=reader is not None and reader.is_reading,
        exported=reader.exported if reader else 0,
        lost_locally=reader.lost if reader else 0,
        imported=bridge.publisher.published[name],
        refused=bridge.publisher.refused[name],
    )
