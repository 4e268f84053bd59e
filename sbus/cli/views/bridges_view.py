"""What `bridges` prints for people: the links of a bridge, its channels, and the buses it hears."""

import os
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from sbus.bridge.own_keys import may_cross
from sbus.bridge.status import (
    BridgeStatus,
    ChannelStatus,
    DurableStatus,
    LinkStatus,
    OriginStatus,
    Traffic,
)
from sbus.bridge.subjects import encode_key
from sbus.cli.terminal.tables import Field, fit, name_field, paragraph, table, text
from sbus.cli.terminal.units import count, counted, size
from sbus.cli.views.clients_view import warned
from sbus.protocol.keys import SLASH
from sbus.protocol.pattern_matching import compile_patterns


def bridge_lines(status: BridgeStatus, width: int | None) -> list[Text]:
    """All of it."""
    title = fit(text(f"bridge of {status.host}, origin {status.origin}", "bold"), width)
    lines = [title, Text(), *table(_LINK, status.links, width)]
    lines += [Text(), *table(_CHANNEL, status.channels, width)]
    if status.durable:
        lines += [Text(), *table(_DURABLE, status.durable, width)]
    if status.origins:
        lines += [Text(), *table(_ORIGIN, status.origins, width)]
    if status.origins_left_out:
        lines.append(text(f"and {status.origins_left_out} more"))
    for name, traffic in _all_traffic(status):
        for pattern, messages in traffic.given_up.items():
            told = f"given up for {name}: {counted(messages, 'message')} of {pattern}"
            lines.append(fit(text(told, "yellow"), width))
    return lines


def _all_traffic(status: BridgeStatus) -> Iterator[tuple[str, Traffic]]:
    for link in status.links:
        yield f"link {link.name}", link
    for durable in status.durable:
        yield f"durable channel {durable.channel}", durable


def crossing_lines(status: BridgeStatus, key: bytes, width: int | None) -> list[Text]:
    """Whether messages with this key cross, and why."""
    channels = [
        channel.name
        for channel in status.channels
        if compile_patterns(map(os.fsencode, channel.patterns), SLASH)(key)
    ]
    if not may_cross(key):
        return paragraph("It crosses no bridge: such keys never do.", width)
    lines = []
    durable = [durable.channel for durable in status.durable]
    for link in status.links:
        for channel in channels:
            if channel in link.exports:
                subject = f"{link.prefix}.*.{channel}.{status.origin}.{encode_key(key, SLASH)}"
                where = f", with the subject {subject}" if link.prefix else ""
                is_wanted = channel in link.wanted or channel in durable
                wanted = "" if is_wanted else "; nobody imports it now"
                lines += paragraph(
                    f"It crosses link {link.name} in channel {channel}{where}{wanted}.", width
                )
    return lines or paragraph("It crosses no bridge: no channel that is exported has it.", width)


_TRAFFIC: list[Field[Any]] = [
    Field("SENT", lambda it: count(it.sent)),
    Field("SENT/S", lambda it: count(it.sent_per_second)),
    Field("RECEIVED", lambda it: count(it.received)),
    Field("RECEIVED/S", lambda it: count(it.received_per_second)),
    Field("GIVEN-UP", lambda it: warned(sum(it.given_up.values()))),
]
_LINK: list[Field[LinkStatus]] = [
    name_field("LINK", lambda link: link.name),
    Field("CONNECTED", lambda link: count(link.sessions)),
    *_TRAFFIC,
    Field("WAITING", lambda link: size(link.waiting_bytes), rank=1),
    name_field("PEERS", lambda link: ", ".join(link.peers)),
    name_field("STATE", lambda link: link.state),
]
_CHANNEL: list[Field[ChannelStatus]] = [
    name_field("CHANNEL", lambda channel: channel.name),
    Field("EXPORTED", lambda channel: count(channel.exported)),
    Field("LOST", lambda channel: warned(channel.lost_locally)),
    Field("IMPORTED", lambda channel: count(channel.imported)),
    Field("REFUSED", lambda channel: warned(channel.refused)),
    name_field("PATTERNS", lambda channel: " ".join(channel.patterns)),
]
_DURABLE: list[Field[DurableStatus]] = [
    name_field("DURABLE", lambda durable: durable.channel),
    *_TRAFFIC,
    Field("BEHIND", lambda durable: count(durable.behind)),
    Field("SPOOL", lambda durable: size(durable.spool_bytes)),
]
_ORIGIN: list[Field[OriginStatus]] = [
    name_field("CHANNEL", lambda origin: origin.channel),
    name_field("ORIGIN", lambda origin: origin.origin),
    Field("DELIVERED", lambda origin: count(origin.counts.delivered)),
    Field("MISSING", lambda origin: warned(origin.counts.missing)),
    Field("GAPS", lambda origin: warned(origin.counts.unknown_gaps)),
    Field("TWICE", lambda origin: count(origin.counts.duplicates), rank=1),
    Field("BEHIND", lambda origin: count(origin.behind)),
    Field("HELD", lambda origin: count(origin.held), rank=2),
    name_field("WAYS", lambda origin: ", ".join(origin.ways)),
]
