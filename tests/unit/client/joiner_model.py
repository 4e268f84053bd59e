"""What must come out of a stream in the end, message by message, from all of its packets."""

from collections.abc import Sequence

from sbus.protocol.admin_streams import Messages, Missed, Part, Recipients, StreamPacket

Shown = tuple[str, int | None, bytes | None] | int
"""The key, the number of recipients and the payload of a message; or how many are missed."""


def joined(packets: Sequence[StreamPacket]) -> list[Shown]:
    """Messages in the total order; what a source has missed behind its last messages before."""
    reports = _reports(packets)
    placed: list[tuple[int, int, list[Shown]]] = []
    last_order: dict[int, int] = {}
    missed: dict[int, int] = {}
    for at, packet in enumerate(packets):
        source = packet.source
        if isinstance(packet, Messages | Missed) and packet.missed > missed.get(source, 0):
            more = packet.missed - missed.get(source, 0)
            missed[source] = packet.missed
            placed.append((last_order.get(source, 0), 2 * at, [more]))
        if isinstance(packet, Messages):
            last_order[source] = packet.order
            payloads = (packet.payloads or b"") + _rest(packets[at + 1 :], source)
            placed.append((packet.order, 2 * at + 1, _messages(packet, payloads, reports)))
    return [one for _, _, some in sorted(placed, key=lambda one: one[:2]) for one in some]


def _reports(packets: Sequence[StreamPacket]) -> dict[tuple[int, int, int], int]:
    """Numbers of recipients by block, entry and worker."""
    return {
        (packet.block, entry, packet.worker): recipients
        for packet in packets
        if isinstance(packet, Recipients)
        for entry, recipients in zip(packet.entries, packet.recipients, strict=True)
    }


def _rest(packets: Sequence[StreamPacket], source: int) -> bytes:
    """The parts that follow a packet of this source."""
    parts = []
    for packet in packets:
        if packet.source == source and isinstance(packet, Messages | Part):
            if isinstance(packet, Messages):
                break
            parts.append(packet.payload)
    return b"".join(parts)


def _messages(
    packet: Messages, payloads: bytes, reports: dict[tuple[int, int, int], int]
) -> list[Shown]:
    found: list[Shown] = []
    for index, (key, size) in enumerate(zip(packet.keys, packet.sizes, strict=True)):
        recipients: int | None = packet.recipients[index]
        for worker in packet.workers[index] if packet.workers else ():
            report = reports.get((packet.block, packet.entries[index], worker))
            recipients = None if recipients is None or report is None else recipients + report
        is_hidden = size is None or packet.payloads is None
        payload, payloads = payloads[: size or 0], payloads[size or 0 :]
        if is_hidden or len(payload) == size:
            found.append((key, recipients, None if is_hidden else payload))
        else:
            found.append(1)
    return found
