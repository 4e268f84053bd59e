"""The parts of a bridge, described as its status."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict

from sbus.bridge.configuration import Channel
from sbus.bridge.exchange import Exchange
from sbus.bridge.ledger import Ledger
from sbus.bridge.local_bus import ChannelReader, LocalPublisher
from sbus.bridge.status import (
    BridgeStatus,
    ChannelStatus,
    DurableStatus,
    LinkStatus,
    OriginStatus,
)
from sbus.bridge.subjects import filter_of
from sbus.protocol.keys import SLASH
from sbus.version import __version__

Ledgers = dict[str, dict[str, Ledger[Any]]]
"""By channel and origin."""


def describe(
    exchange: Exchange,
    publisher: LocalPublisher,
    readers: dict[str, ChannelReader],
    links: list[LinkStatus],
    durable: Iterable[DurableStatus],
    ledgers: Ledgers,
) -> BridgeStatus:
    """As it is now."""
    plan = exchange.plan
    return BridgeStatus(
        version=__version__,
        origin=plan.origin,
        host=plan.host,
        looped=exchange.looped,
        channels=[
            _channel(name, channel, publisher, readers.get(name))
            for name, channel in plan.channels.items()
        ],
        links=links,
        durable=list(durable),
        origins=[
            _origin(channel, origin, ledger)
            for channel, origins in ledgers.items()
            for origin, ledger in origins.items()
        ],
    )


def _channel(
    name: str, channel: Channel, publisher: LocalPublisher, reader: ChannelReader | None
) -> ChannelStatus:
    filters = [filter_of(pattern, SLASH) for pattern in channel.encoded_patterns]
    return ChannelStatus(
        name=name,
        patterns=channel.patterns,
        filters=[found.tokens for found in filters if found],
        is_reading=reader is not None and reader.is_reading,
        exported=reader.exported if reader else 0,
        lost_locally=reader.lost if reader else 0,
        imported=publisher.published[name],
        refused=publisher.refused[name],
    )


def _origin(channel: str, origin: str, ledger: Ledger[Any]) -> OriginStatus:
    ways = [" ".join(way) for way in ledger.ways]
    counts = asdict(ledger.counts)
    return OriginStatus(channel=channel, origin=origin, held=ledger.held, ways=ways, **counts)
