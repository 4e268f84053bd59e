"""What `bridges` prints for people: the links of a bridge, its channels, and the buses it hears."""

import os

from rich.text import Text

from sbus.bridge.own_keys import may_cross
from sbus.bridge.status import BridgeStatus, ChannelStatus, LinkStatus, OriginStatus
from sbus.bridge.subjects import encode_key
from sbus.cli.terminal.tables import Field, fit, name_field, paragraph, table, text
from sbus.cli.terminal.units import count, size
from sbus.cli.views.clients_view import warned
from sbus.protocol.keys import SLASH
from sbus.protocol.pattern_matching import compile_patterns


def bridge_lines(status: BridgeStatus, width: int | None) -> list[Text]:
    """All of it."""
    title = fit(text(f"bridge of {status.host}, origin {status.origin}", "bold"), width)
    lines = [title, Text(), *table(_LINK, status.links, width)]
    lines += [Text(), *table(_CHANNEL, status.channels, width)]
    if status.origins:
        lines += [Text(), *table(_ORIGIN, status.origins, width)]
    return lines


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
    for link in status.links:
        for channel in channels:
            if channel in link.exports:
                subject = f"{link.prefix}.*.{channel}.{status.origin}.{encode_key(key, SLASH)}"
                where = f", with the subject {subject}" if link.prefix else ""
                wanted = "" if channel in link.wanted else "; nobody imports it now"
                lines += paragraph(
                    f"It crosses link {link.name} in channel {channel}{where}{wanted}.", width
                )
    return lines or paragraph("It crosses no bridge: no channel that is exported has it.", width)


_LINK: list[Field[LinkStatus]] = [
    name_field("LINK", lambda link: link.name),
    Field("CONNECTED", lambda link: count(link.sessions)),
    Field("SENT", lambda link: count(link.sent)),
    Field("RECEIVED", lambda link: count(link.received)),
    Field("GIVEN-UP", lambda link: warned(sum(link.given_up.values()))),
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
_ORIGIN: list[Field[OriginStatus]] = [
    name_field("CHANNEL", lambda origin: origin.channel),
    name_field("ORIGIN", lambda origin: origin.origin),
    Field("DELIVERED", lambda origin: count(origin.counts.delivered)),
    Field("MISSING", lambda origin: warned(origin.counts.missing)),
    Field("GAPS", lambda origin: warned(origin.counts.unknown_gaps)),
    Field("TWICE", lambda origin: count(origin.counts.duplicates), rank=1),
    Field("HELD", lambda origin: count(origin.held), rank=2),
    name_field("WAYS", lambda origin: ", ".join(origin.ways)),
]
