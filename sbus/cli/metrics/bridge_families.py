"""The metrics of a bridge, from what it tells of itself."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from sbus.bridge.status import BridgeStatus

Samples = Iterable[tuple[tuple[str, ...], float]]


class _Family(NamedTuple):
    name: str
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[BridgeStatus], Samples]


def collect_bridge(status: BridgeStatus) -> Iterator[Metric]:
    """The families with the figures of now."""
    for family in FAMILIES:
        kind = "counter" if family.name.endswith("_total") else "gauge"
        metric = Metric(family.name.removesuffix("_total"), family.meaning, kind)
        for labels, figure in family.samples(status):
            named = dict(zip(family.labels, labels, strict=True))
            metric.add_sample(family.name, named, figure)
        yield metric


def _of_links(name: str, meaning: str, field: str) -> _Family:
    return _Family(
        f"sbus_bridge_link_{name}",
        ("link",),
        meaning,
        lambda status: [((link.name,), getattr(link, field)) for link in status.links],
    )


def _of_channels(name: str, meaning: str, field: str) -> _Family:
    return _Family(
        f"sbus_bridge_channel_{name}",
        ("channel",),
        meaning,
        lambda status: [((it.name,), getattr(it, field)) for it in status.channels],
    )


def _of_origins(name: str, meaning: str, field: str) -> _Family:
    return _Family(
        f"sbus_bridge_origin_{name}",
        ("channel", "origin"),
        meaning,
        lambda status: [((it.channel, it.origin), getattr(it, field)) for it in status.origins],
    )


def _given_up(status: BridgeStatus) -> Samples:
    for link in status.links:
        for channel in link.exports:
            yield (link.name, channel), link.given_up.get(channel, 0)


FAMILIES = (
    _of_links("up", "Whether what the link imports would come now.", "is_reading"),
    _of_links("connections_total", "How often the link was connected.", "sessions"),
    _of_links("sent_total", "Messages sent, heartbeats not counted.", "sent"),
    _of_links("received_total", "Messages received.", "received"),
    _of_links("waiting_bytes", "Of messages that wait to be sent.", "waiting_bytes"),
    _Family(
        "sbus_bridge_link_given_up_total",
        ("link", "channel"),
        "Messages for which there was no room, or that NATS cannot take.",
        _given_up,
    ),
    _of_channels("exported_total", "Messages of the bus that may cross.", "exported"),
    _of_channels("imported_total", "Messages published for other buses.", "imported"),
    _of_channels("refused_total", "Imported messages with wrong keys.", "refused"),
    _of_channels("lost_total", "Messages that the bus dropped for the bridge.", "lost_locally"),
    _of_origins("missing_total", "Messages in gaps of known size.", "missing"),
    _of_origins("unknown_gaps_total", "Gaps of unknown size.", "unknown_gaps"),
    _of_origins("duplicates_total", "Messages that came again.", "duplicates"),
)
