"""Joining the messages of a stream from the packets of several processes.

The publisher's worker sends its messages, a batch at a time; the numbers of recipients of other
workers come separately, before or after, as do further parts of a large payload (see
`admin_streams`). Here a batch waits until it is complete, and for at least `WINDOW_SECONDS`, so
that an earlier one in the total order, from another worker, can overtake it. After
`COMPLETE_SECONDS_MAX` without the rest, because a worker died or a packet had no room, numbers of
recipients are unknown, or a message counts as missed if its payload is incomplete. When too many
messages wait, the first batch leaves as it is. The number of messages that a source has missed
comes behind the last batch of that source.

`now` is in seconds, of any clock.
"""

import heapq
import math
from collections.abc import Iterator

import msgspec

from sbus.errors import ProtocolViolation
from sbus.protocol.admin_streams import Messages, Missed, Part, Recipients, StreamPacket

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
    """The name of the publisher's program; "" if its process had ended, or the client had gone
    before any of its messages was shown."""
    worker: int


class MissedItems(msgspec.Struct, frozen=True):
    """So much of a stream was not sent, because it was read too slowly."""

    count: int


class MissedCounts:
    """How much of a stream was missed; each source reports how much it has missed in all."""

    def __init__(self) -> None:
        self._by_source: dict[int, int] = {}

    def note(self, source: int, missed: int) -> int:
        """How much more it is than before."""
        more = missed - self._by_source.get(source, 0)
        self._by_source[source] = missed
        return more


class MonitoredBatch:
    """Messages of a publish batch, column by column: `keys`, `sizes` and `recipients` have an item
    for each, `payloads` are pieces of all payloads one after another, and `packet` has the rest."""

    __slots__ = ("arrived_at", "missing", "packet", "payloads", "recipients", "unreported")

    def __init__(self, packet: Messages, now: float) -> None:
        """Raises ProtocolViolation."""
        self.packet = packet
        self.arrived_at = now
        self.recipients: list[int | None] = [*packet.recipients]
        self.unreported: dict[int, set[int]] = {}
        """By the index of a message, the workers that have not sent its number of recipients."""
        self.payloads: list[bytes] = []
        self.missing = 0
        """Bytes of the last payload that have not come."""
        count = len(packet.keys)
        if not len(packet.sizes) == len(self.recipients) == count or (
            packet.workers and not len(packet.workers) == len(packet.entries) == count
        ):
            raise ProtocolViolation("a packet of messages has columns of different lengths")
        if packet.payloads is not None:
            self.payloads.append(packet.payloads)
            self.missing = sum(filter(None, packet.sizes)) - len(packet.payloads)
            if self.missing > ((count and packet.sizes[-1]) or 0):
                raise ProtocolViolation("a packet of messages has too short payloads")

    @property
    def keys(self) -> list[str]:
        return self.packet.keys

    @property
    def sizes(self) -> list[int | None]:
        """Of the payloads, in bytes; None for secret messages."""
        return self.packet.sizes

    @property
    def bytes(self) -> int:
        return sum(map(len, self.keys)) + sum(map(len, self.payloads))

    def messages(self) -> Iterator[MonitoredMessage]:
        packet = self.packet
        payloads, end = b"".join(self.payloads), 0
        for key, size, recipients in zip(self.keys, self.sizes, self.recipients, strict=True):
            begin, end = end, end + (size or 0)
            is_hidden = size is None or packet.payloads is None
            yield MonitoredMessage(
                time=packet.time,
                order=packet.order,
                key=key,
                size=size,
                payload=None if is_hidden else payloads[begin:end],
                recipients=recipients,
                client=packet.client,
                uid=packet.uid,
                gid=packet.gid,
                pid=packet.pid,
                program=packet.program,
                worker=packet.worker,
            )

    def drop_incomplete(self) -> int:
        """Drop the last message if its payload has not come; returns how many were dropped. Numbers
        of recipients that have not come are unknown."""
        for index in self.unreported:
            self.recipients[index] = None
        if self.missing <= 0:
            return 0
        for column in (self.keys, self.sizes, self.recipients):
            column.pop()
        return 1


class MessageJoiner:
    """Joins one stream. Messages with a smaller order than `order` are left out: they were
    published before the stream had begun on all workers."""

    def __init__(self, order: int) -> None:
        self._order = order
        self._heap: list[tuple[int, int, MonitoredBatch | MissedItems]] = []
        """By their order, and as they were fed."""
        self._fed = 0
        self._waiting = 0
        """Messages in the heap."""
        self._bytes = 0
        self._places: dict[tuple[int, int], tuple[MonitoredBatch, int]] = {}
        """Messages that wait for the counts of other workers, by their place in the log."""
        self._early: dict[tuple[int, int, int], int] = {}
        """Counts of recipients that came before their message, by place and worker."""
        self._missed = MissedCounts()
        self._last_order: dict[int, int] = {}
        """Of each source."""
        self._open: dict[int, MonitoredBatch] = {}
        """The batch of each source whose last payload is incomplete."""

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
            self._take_missed(packet)
        elif isinstance(packet, Messages):
            if packet.order < self._order:
                self._missed.note(packet.source, packet.missed)
            else:
                self._take_missed(packet)
                self._take_messages(packet, now)

    def _take_missed(self, packet: Missed | Messages) -> None:
        more = self._missed.note(packet.source, packet.missed)
        if more > 0:
            self._push(self._last_order.get(packet.source, 0), MissedItems(more))

    def _push(self, order: int, item: MonitoredBatch | MissedItems) -> None:
        self._fed += 1
        heapq.heappush(self._heap, (order, self._fed, item))

    def _take_messages(self, packet: Messages, now: float) -> None:
        batch = MonitoredBatch(packet, now)
        if packet.workers:
            self._expect_reports(batch)
        if batch.missing > 0:
            self._open[packet.source] = batch
        self._waiting += len(packet.keys)
        self._bytes += len(packet.payloads or b"")
        self._last_order[packet.source] = packet.order
        self._push(packet.order, batch)

    def _expect_reports(self, batch: MonitoredBatch) -> None:
        """Wait for numbers of recipients, and add those that are known already."""
        packet = batch.packet
        for index, workers in enumerate(packet.workers):
            if not workers:
                continue
            place = (packet.block, packet.entries[index])
            self._places[place] = batch, index
            batch.unreported[index] = set(workers)
            for worker in workers if self._early else ():
                recipients = self._early.pop((*place, worker), None)
                if recipients is not None:
                    self._add_recipients(place, worker, recipients)

    def _add_recipients(self, place: tuple[int, int], worker: int, recipients: int) -> None:
        batch, index = self._places[place]
        unreported = batch.unreported[index]
        known = batch.recipients[index]
        if worker in unreported and known is not None:
            batch.recipients[index] = known + recipients
            unreported.remove(worker)
        if not unreported:
            del batch.unreported[index], self._places[place]

    def _take_part(self, packet: Part) -> None:
        batch = self._open.get(packet.source)
        if batch is None:
            return  # of a message that was left out
        batch.payloads.append(packet.payload)
        batch.missing -= len(packet.payload)
        self._bytes += len(packet.payload)
        if batch.missing <= 0:
            del self._open[packet.source]

    def _take_recipients(self, packet: Recipients) -> None:
        for entry, recipients in zip(packet.entries, packet.recipients, strict=False):
            place = (packet.block, entry)
            if place in self._places:
                self._add_recipients(place, packet.worker, recipients)
                continue
            if len(self._early) >= WAITING_MAX:
                del self._early[next(iter(self._early))]
            self._early[*place, packet.worker] = recipients

    # -- out -----------------------------------------------------------------------------------
    def take(self, now: float = math.inf) -> list[MonitoredBatch | MissedItems]:
        """What is complete, in the total order; at the end, everything as it is."""
        return list(self._ready(now))

    def next_at(self) -> float | None:
        """When `take` returns something even if nothing comes; None if never."""
        if not self._heap:
            return None
        batch = self._heap[0][2]
        if isinstance(batch, MissedItems):
            return -math.inf
        is_complete = batch.missing <= 0 and not batch.unreported
        return batch.arrived_at + (WINDOW_SECONDS if is_complete else COMPLETE_SECONDS_MAX)

    def _ready(self, now: float) -> Iterator[MonitoredBatch | MissedItems]:
        while (at := self.next_at()) is not None:
            too_much = self._waiting > WAITING_MAX or self._bytes > WAITING_BYTES_MAX
            if not too_much and at > now:
                return
            item = heapq.heappop(self._heap)[2]
            if isinstance(item, MissedItems):
                yield item
                continue
            self._forget(item)
            dropped = item.drop_incomplete()
            if item.keys:
                yield item
            if dropped:
                yield MissedItems(dropped)

    def _forget(self, batch: MonitoredBatch) -> None:
        """Remove all references to this batch."""
        packet = batch.packet
        for index in batch.unreported:
            self._places.pop((packet.block, packet.entries[index]), None)
        if self._open.get(packet.source) is batch:
            del self._open[packet.source]
        self._waiting -= len(batch.keys)
        self._bytes -= sum(map(len, batch.payloads))

    def check_invariants(self) -> None:
        """All that is counted and remembered is about batches that wait."""
        batches = [item for _, _, item in self._heap if isinstance(item, MonitoredBatch)]
        assert self._waiting == sum(len(batch.keys) for batch in batches)
        assert self._bytes == sum(len(piece) for batch in batches for piece in batch.payloads)
        remembered = [*self._open.values(), *(batch for batch, _ in self._places.values())]
        assert all(any(batch is other for other in batches) for batch in remembered)
        assert len(self._early) <= WAITING_MAX
