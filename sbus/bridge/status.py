"""What a bridge tells of itself, over the bus, to `sbusctl bridges`."""

from typing import TYPE_CHECKING, Any

import msgspec

from sbus.bridge.ledger import Ledger
from sbus.errors import ProtocolViolation
from sbus.version import __version__

if TYPE_CHECKING:
    from sbus.bridge.bridge import Bridge
    from sbus.bridge.durable import DurableExport, DurableImport


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
                is_reading=link.is_reading,
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
        durable=[
            _durable(name, bridge.durable_exports.get(name), bridge.durable_imports.get(name))
            for name, channel in bridge.plan.channels.items()
            if channel.durable
        ],
        origins=[
            _origin(channel, origin, ledger)
            for channel, ledgers in _all_ledgers(bridge).items()
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


def _durable(
    name: str, exported: "DurableExport | None", imported: "DurableImport | None"
) -> DurableStatus:
    return DurableStatus(
        channel=name,
        is_importing=imported is not None and imported.is_importing,
        sent=exported.sent if exported else 0,
        received=imported.received if imported else 0,
        given_up=exported.given_up if exported else 0,
        spool_bytes=exported.waiting_bytes if exported else 0,
    )


def _all_ledgers(bridge: "Bridge") -> dict[str, dict[str, Ledger[Any]]]:
    imported = {name: channel.ledgers for name, channel in bridge.durable_imports.items()}
    return {**bridge.exchange.ledgers, **imported}


def _origin(channel: str, origin: str, ledger: Ledger[Any]) -> OriginStatus:
    return OriginStatus(
        channel=channel,
        origin=origin,
        delivered=ledger.counts.delivered,
        missing=ledger.counts.missing,
        unknown_gaps=ledger.counts.unknown_gaps,
        duplicates=ledger.counts.duplicates,
        held=ledger.held,
        ways=[" ".join(way) for way in ledger.ways],
    )
