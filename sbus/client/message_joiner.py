"""Joining the messages of a stream from the packets of several processes.

The publisher's worker sends a message; the numbers of recipients of other workers come separately,
before or after, as do further parts of a large payload (see `admin_streams`). Here a message waits
until it is complete, and for at least `WINDOW_SECONDS`, so that an earlier message in the total
order, from another worker, can overtake it. After `COMPLETE_SECONDS_MAX` without the rest, because
a worker died or a packet had no room, its number of recipients is unknown, or it counts as missed
if its payload is incomplete. When too many messages wait, the first one leaves as it is.

`now` is in seconds, of any clock.
"""

import heapq
import math
from collections.abc import Iterator

import msgspec

from sbus.errors import ProtocolViolation
from sbus.protocol.admin_streams import Message, Messages, Missed, Part, Recipients, StreamPacket

WINDOW_SECONDS = 0.02
COMPLETE_SECONDS_MAX = 1.0
WAITING_MAX = 50_000
"""Messages that wait, and counts of recipients that wait for their message."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Of all payloads that wait."""

_decoder: msgspec.json.Decoder[StreamPacket] = msgspec.json.Decoder(StreamPacket)


class MonitoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A published message. `key` and `program` are text as written by `text.to_text`."""

    time: float
    """When it got its place in the total order, in seconds since 1970."""
    order: int
    """The same within a publish batch; it increases with the total order."""
    key: str
    size: int | None
    """Size of the payload in bytes; None for a secret message."""
    payload: bytes | None
    """None if it was not requested, and for a secret message."""
    recipients: int | None
    """The number of recipients; None when it is unknown."""
    client: int
    uid: int
    gid: int
    pid: int
    program: str
    """The name of the publisher's program; "" if its process had ended."""
    worker: int


class MissedItems(msgspec.Struct, frozen=True):
    """So much of a stream was not sent, because it was read too slowly."""

    count: int


class MissedCounts:
    """How much of a stream was missed; each source reports how much it has dropped in all."""

    def __init__(self) -> None:
        self._by_source: dict[int, int] = {}
        self._unreported = 0

    def note(self, source: int, missed: int, *, before_beginning: bool = False) -> None:
        if not before_beginning:
            self._unreported += missed - self._by_source.get(source, 0)
        self._by_source[source] = missed

    def take(self) -> list[MissedItems]:
        """What was missed since the last time, as at most one item."""
        if self._unreported <= 0:
            return []
        missed, self._unreported = self._unreported, 0
        return [MissedItems(missed)]


class _Waiting:
    """A message that may be incomplete; `missing` bytes of its payload have not come yet."""

    __slots__ = ("arrived_at", "message", "missing", "packet", "parts", "recipients", "workers")

    def __init__(self, packet: Messages, message: Message, now: float) -> None:
        self.packet = packet
        self.message = message
        self.arrived_at = now
        self.recipients = message.recipients
        self.workers = set(message.workers) if message.workers else None
        self.parts: list[bytes] = []
        self.missing = 0
        if message.payload is not None and message.size is not None:
            self.missing = message.size - len(message.payload)

    def ready_at(self) -> float:
        incomplete = self.workers or self.missing
        return self.arrived_at + (COMPLETE_SECONDS_MAX if incomplete else WINDOW_SECONDS)

    def finish(self) -> MonitoredMessage:
        packet, message = self.packet, self.message
        return MonitoredMessage(
            time=packet.time,
            order=packet.order,
            key=message.key,
            size=message.size,
            payload=None if message.payload is None else b"".join((message.payload, *self.parts)),
            recipients=None if self.workers else self.recipients,
            client=packet.client,
            uid=packet.uid,
            gid=packet.gid,
            pid=packet.pid,
            program=packet.program,
            worker=packet.worker,
        )


class MessageJoiner:
    """Joins one stream. Messages with a smaller order than `order` are left out: they were
    published before the stream had begun on all workers."""

    def __init__(self, order: int) -> None:
        self._order = order
        self._heap: list[tuple[int, int, _Waiting]] = []
        self._fed = 0
        self._bytes = 0
        self._places: dict[tuple[int, int], _Waiting] = {}
        """Messages that wait for the counts of other workers, by their place in the log."""
        self._early: dict[tuple[int, int, int], int] = {}
        """Counts of recipients that came before their message, by place and worker."""
        self._missed = MissedCounts()
        self._open: dict[int, _Waiting] = {}
        """The message of each source whose payload is incomplete."""

    # -- in ------------------------------------------------------------------------------------
    def feed(self, data: bytes, now: float) -> None:
        """Take in a packet of the stream; raises ProtocolViolation."""
        try:
            packet = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"not a packet of a stream: {error}") from error
        if isinstance(packet, Part):
            self._take_part(packet)
        elif isinstance(packet, Recipients):
            self._take_recipients(packet)
        elif isinstance(packet, Missed):
            self._missed.note(packet.source, packet.missed)
        elif isinstance(packet, Messages):
            is_early = packet.order < self._order
            self._missed.note(packet.source, packet.missed, before_beginning=is_early)
            if not is_early:
                self._take_messages(packet, now)

    def _take_messages(self, packet: Messages, now: float) -> None:
        for message in packet.messages:
            waiting = _Waiting(packet, message, now)
            if waiting.workers is not None:
                self._take_early(waiting)
            if waiting.missing > 0:
                self._open[packet.source] = waiting
            self._bytes += len(message.payload or b"")
            self._fed += 1
            heapq.heappush(self._heap, (packet.order, self._fed, waiting))

    def _take_early(self, waiting: _Waiting) -> None:
        """Add the recipients that are known already."""
        assert waiting.workers is not None
        place = (waiting.packet.block, waiting.message.entry)
        if self._early:
            for worker in waiting.message.workers:
                recipients = self._early.pop((*place, worker), None)
                if recipients is not None:
                    waiting.recipients += recipients
                    waiting.workers.discard(worker)
        if waiting.workers:
            self._places[place] = waiting

    def _take_part(self, packet: Part) -> None:
        waiting = self._open.get(packet.source)
        if waiting is None:
            return  # of a message that was left out
        waiting.parts.append(packet.payload)
        waiting.missing -= len(packet.payload)
        self._bytes += len(packet.payload)
        if waiting.missing <= 0:
            del self._open[packet.source]

    def _take_recipients(self, packet: Recipients) -> None:
        worker = packet.worker
        for block, entry, recipients in packet.counts:
            waiting = self._places.get((block, entry))
            if waiting is None:
                if len(self._early) >= WAITING_MAX:
                    del self._early[next(iter(self._early))]
                self._early[block, entry, worker] = recipients
            elif waiting.workers and worker in waiting.workers:
                waiting.recipients += recipients
                waiting.workers.discard(worker)
                if not waiting.workers:
                    del self._places[block, entry]

    # -- out -----------------------------------------------------------------------------------
    def take(self, now: float = math.inf) -> list[MonitoredMessage | MissedItems]:
        """What is complete, messages in the total order; at the end, everything as it is."""
        return list(self._ready(now))

    def next_at(self) -> float | None:
        """When `take` returns something even if nothing comes; None if never."""
        return self._heap[0][2].ready_at() if self._heap else None

    def _ready(self, now: float) -> Iterator[MonitoredMessage | MissedItems]:
        yield from self._missed.take()
        heap = self._heap
        while heap:
            waiting = heap[0][2]
            too_much = len(heap) > WAITING_MAX or self._bytes > WAITING_BYTES_MAX
            if not (too_much or waiting.ready_at() <= now):
                return
            heapq.heappop(heap)
            self._forget(waiting)
            yield MissedItems(1) if waiting.missing > 0 else waiting.finish()

    def _forget(self, waiting: _Waiting) -> None:
        """Remove all references to this message."""
        place = (waiting.packet.block, waiting.message.entry)
        if waiting.workers and self._places.get(place) is waiting:
            del self._places[place]
        if self._open.get(waiting.packet.source) is waiting:
            del self._open[waiting.packet.source]
        self._bytes -= len(waiting.message.payload or b"") + sum(map(len, waiting.parts))
