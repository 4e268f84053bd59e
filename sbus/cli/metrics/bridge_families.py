"""The metrics of a bridge, from what it tells of itself."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from sbus.bridge.status import BridgeStatus

Items = Callable[[BridgeStatus], Iterable[tuple[tuple[str, ...], Any]]]
"""The labels of each item, and the item or its figure."""


def collect_bridge(status: BridgeStatus) -> Iterator[Metric]:
    """The families with the figures of now."""
    for labels, items, figures in FAMILIES:
        for name, (field, meaning) in figures.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            metric = Metric(f"sbus_bridge_{name.removesuffix('_total')}", meaning, kind)
            for values, item in items(status):
                figure = getattr(item, field) if field else item
                metric.add_sample(
                    f"sbus_bridge_{name}", dict(zip(labels, values, strict=True)), figure
                )
            yield metric


def _given_up(status: BridgeStatus) -> Iterator[tuple[tuple[str, ...], int]]:
    patterns = {channel.name: channel.patterns for channel in status.channels}
    durable = {durable.channel: durable for durable in status.durable}
    for link in status.links:
        for channel in link.exports:
            for pattern in patterns[channel]:
                given_up = durable.get(channel, link).given_up
                yield (link.name, channel, pattern), given_up.get(pattern, 0)


FAMILIES: tuple[tuple[tuple[str, ...], Items, Mapping[str, tuple[str, str]]], ...] = (
    (
        ("link",),
        lambda status: (((link.name,), link) for link in status.links),
        {
            "link_up": ("is_reading", "Whether what the link imports would come now."),
            "link_connections_total": ("sessions", "How often the link was connected."),
            "link_sent_total": ("sent", "Messages sent, heartbeats not counted."),
            "link_received_total": ("received", "Messages received."),
            "link_waiting_bytes": ("waiting_bytes", "Of messages that wait to be sent."),
        },
    ),
    (
        ("link", "channel", "pattern"),
        _given_up,
        {"link_given_up_total": ("", "Messages without room, or that NATS cannot take.")},
    ),
    (
        ("channel",),
        lambda status: (((channel.name,), channel) for channel in status.channels),
        {
            "channel_exported_total": ("exported", "Messages of the bus that may cross."),
            "channel_imported_total": ("imported", "Messages published for other buses."),
            "channel_refused_total": ("refused", "Imported messages with wrong keys."),
            "channel_lost_total": ("lost_locally", "Messages dropped by the bus for the bridge."),
        },
    ),
    (
        ("channel", "origin"),
        lambda status: (((it.channel, it.origin), it.counts) for it in status.origins),
        {
            "origin_missing_total": ("missing", "Messages in gaps of known size."),
            "origin_unknown_gaps_total": ("unknown_gaps", "Gaps of unknown size."),
            "origin_duplicates_total": ("duplicates", "Messages that came again."),
        },
    ),
)
