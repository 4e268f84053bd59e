"""The parts of a bridge, described as its status."""

from dataclasses import dataclass
from typing import Any

from sbus.bridge.durable import DurableExport, DurableImport
from sbus.bridge.exchange import Exchange
from sbus.bridge.ledger import Ledger
from sbus.bridge.local_bus import ChannelReader, LocalPublisher
from sbus.bridge.nats_link import NatsLink
from sbus.bridge.status import (
    BridgeStatus,
    ChannelStatus,
    DurableStatus,
    LinkStatus,
    OriginStatus,
)
from sbus.bridge.subjects import filter_of
from sbus.bridge.uplink import Uplink
from sbus.protocol.keys import SLASH
from sbus.version import __version__


@dataclass(frozen=True, slots=True)
class Parts:
    """What a bridge is made of."""

    exchange: Exchange
    publisher: LocalPublisher
    links: list[NatsLink | Uplink]
    readers: dict[str, ChannelReader]
    durable_exports: dict[str, DurableExport]
    durable_imports: dict[str, DurableImport]


def status_of(parts: Parts) -> BridgeStatus:
    """As it is now."""
    return BridgeStatus(
        version=__version__,
        origin=parts.exchange.plan.origin,
        host=parts.exchange.plan.host,
        looped=parts.exchange.looped,
        channels=[_channel(parts, name) for name in parts.exchange.plan.channels],
        links=[
            LinkStatus(
                name=link.name,
                exports=link.plan.exports,
                imports=link.plan.imports,
                prefix="" if link.plan.uplink else link.plan.prefix,
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
            for link in parts.links
        ],
        durable=[
            _durable(name, parts.durable_exports.get(name), parts.durable_imports.get(name))
            for name, channel in parts.exchange.plan.channels.items()
            if channel.durable
        ],
        origins=[
            _origin(channel, origin, ledger)
            for channel, ledgers in _all_ledgers(parts).items()
            for origin, ledger in ledgers.items()
        ],
    )


def _channel(parts: Parts, name: str) -> ChannelStatus:
    reader = parts.readers.get(name)
    channel = parts.exchange.plan.channels[name]
    filters = [filter_of(pattern, SLASH) for pattern in channel.encoded_patterns]
    return ChannelStatus(
        name=name,
        patterns=channel.patterns,
        filters=[found.tokens for found in filters if found],
        is_reading=reader is not None and reader.is_reading,
        exported=reader.exported if reader else 0,
        lost_locally=reader.lost if reader else 0,
        imported=parts.publisher.published[name],
        refused=parts.publisher.refused[name],
    )


def _durable(
    name: str, exported: DurableExport | None, imported: DurableImport | None
) -> DurableStatus:
    return DurableStatus(
        channel=name,
        is_importing=imported is not None and imported.is_importing,
        sent=exported.sent if exported else 0,
        received=imported.received if imported else 0,
        given_up=exported.given_up if exported else 0,
        spool_bytes=exported.waiting_bytes if exported else 0,
    )


def _all_ledgers(parts: Parts) -> dict[str, dict[str, Ledger[Any]]]:
    imported = {name: channel.ledgers for name, channel in parts.durable_imports.items()}
    return {**parts.exchange.ledgers, **imported}


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
