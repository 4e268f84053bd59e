"""A section of a backlog: the messages and gaps between two replies, and the reply that ends it.

Its messages are in three parts. What is in one of them came before what is in the next:

    sorted    also by size, for order `random`
    newest    by key, for order `latest`: a message takes the place of the one with its key
    row       as they came

A message moves from the row to one of the other parts, or from the second to the first, and never
back. So a client may change the order as often as it likes.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import msgspec
from sortedcontainers import SortedList

from sbus.broker.ipc.client_record import BacklogItem, ReplyRecord
from sbus.protocol.controls import BacklogOrder
from sbus.protocol.packets import NUL, PUBLISH_WORD

_QUEUE, _STACK = BacklogOrder.QUEUE, BacklogOrder.STACK
_RANDOM, _LATEST = BacklogOrder.RANDOM, BacklogOrder.LATEST
"""Under names of this module's own, because looking a member up costs more than using it."""
_BEHIND_SENDER = b" " + PUBLISH_WORD
_INDEX_BYTES = 192
"""What it takes to have a message sorted by size or found by its key, which is kept once more."""
AGING_BYTES = 256
"""What it takes to know when a message came."""


class ControlMessage(msgspec.Struct, frozen=True):
    """A control message, at its place."""

    packet: bytes
    is_reply: bool = False
    """To the request of the client that a successor would carry out again."""


class AgingMessage(bytes):
    """A message of which is known when it came, by CLOCK_MONOTONIC."""

    came_ms: int


def aging(packet: bytes, came_ms: int) -> AgingMessage:
    message = AgingMessage(packet)
    message.came_ms = came_ms
    return message


def age_bytes(packet: bytes) -> int:
    """What the age of a message takes besides it."""
    return AGING_BYTES if type(packet) is AgingMessage else 0


def key_of(packet: bytes) -> bytes:
    """The key of a message, which may be behind the words that tell its sender."""
    at = 0 if packet.startswith(PUBLISH_WORD) else packet.index(_BEHIND_SENDER) + 1
    at += len(PUBLISH_WORD)
    return packet[at : packet.index(NUL, at)]


class _SortedMessages:
    """Messages in the order in which they came, and sorted by size as well: about 200 bytes each,
    besides their own."""

    __slots__ = ("_by_number", "_by_size", "_next")

    def __init__(self) -> None:
        self._by_number: OrderedDict[int, bytes] = OrderedDict()
        self._by_size: SortedList[tuple[int, int]] = SortedList()
        self._next = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._by_number.values())

    def append(self, packet: bytes) -> None:
        self._by_number[self._next] = packet
        self._by_size.add((-len(packet), self._next))
        self._next += 1

    def first(self, order: BacklogOrder) -> bytes:
        if order is _RANDOM:
            return self._by_number[self._by_size[0][1]]
        numbers = reversed(self._by_number) if order is _STACK else iter(self._by_number)
        return self._by_number[next(numbers)]

    def pop_first(self, order: BacklogOrder) -> bytes:
        if order is _RANDOM:
            return self._by_number.pop(self._by_size.pop(0)[1])
        number, packet = self._by_number.popitem(last=order is _STACK)
        self._by_size.remove((-len(packet), number))
        return packet


class Section:
    """Messages and gaps between two control messages, and the one that ends it."""

    __slots__ = ("control", "gaps", "newest", "overhead_bytes", "row", "sent", "sorted", "to_sort")

    def __init__(self) -> None:
        self.sorted = _SortedMessages()
        self.newest: OrderedDict[bytes, bytes] = OrderedDict()
        self.row: deque[bytes] = deque()
        self.to_sort = 0
        """The oldest messages in the row that another bus had sorted: nothing replaces them."""
        self.overhead_bytes = 0
        """What the first two parts, and the ages of messages, take besides these."""
        self.sent = 0
        self.gaps: deque[list[int]] = deque()
        """Each as how many messages of this section are sent before it, and its count."""
        self.control: ControlMessage | None = None

    def __len__(self) -> int:
        return len(self.sorted) + len(self.newest) + len(self.row)

    def __iter__(self) -> Iterator[bytes]:
        if not self.overhead_bytes:
            return iter(self.row)
        return chain(self.sorted, self.newest.values(), self.row)

    def items(self) -> Iterator[Iterable[BacklogItem]]:
        """Messages, and the counts of gaps, in the order in which they came; to be taken one after
        the other."""
        packets, start = iter(self), self.sent
        for position, count in self.gaps:
            yield islice(packets, position - start)
            yield (count,)
            start = position
        yield packets
        if self.control is not None:
            yield (ReplyRecord(self.control.packet, self.control.is_reply),)

    # -- the first two parts -------------------------------------------------------------------
    def unindexed(self, order: BacklogOrder) -> int:
        """Messages that this order needs in another part before the next is sent."""
        if order is _RANDOM:
            return len(self.newest) + len(self.row)
        return len(self.row) if order is _LATEST else 0

    def index_bytes_max(self, order: BacklogOrder, count: int) -> int:
        """At most this is taken when so many of them are put there."""
        kept_bytes = sum(map(len, islice(self.row, count))) if order is _LATEST else 0
        return _INDEX_BYTES * count + kept_bytes

    def index(self, order: BacklogOrder, count: int) -> list[bytes]:
        """Put so many of them there; returns those that have been replaced."""
        to_sort = count if order is _RANDOM else min(count, self.to_sort)
        for _ in range(to_sort):
            self.sorted.append(self._pop_oldest())
        self.overhead_bytes += _INDEX_BYTES * to_sort
        packets = [self.row.popleft() for _ in range(count - to_sort)]
        return [old for packet in packets if (old := self._put(packet)) is not None]

    def _put(self, packet: bytes) -> bytes | None:
        key = key_of(packet)
        old = self.newest.get(key)
        self.newest[key] = packet
        if old is None:
            self.overhead_bytes += _INDEX_BYTES + len(key)
        else:
            self.forget_age(old)
        return old

    def replaceable(self, packet: bytes) -> bytes | None:
        """The message whose place this one may take, if there is one."""
        return None if self.row else self.newest.get(key_of(packet))

    def replace(self, packet: bytes) -> None:
        """Have this message in the place of that one."""
        key = key_of(packet)
        self.forget_age(self.newest[key])
        self.note_age(packet)
        self.newest[key] = packet

    # -- ages ----------------------------------------------------------------------------------
    def note_age(self, packet: bytes) -> None:
        """The message is among these; it may be one of known age."""
        self.overhead_bytes += age_bytes(packet)

    def forget_age(self, packet: bytes) -> None:
        """It is not any more."""
        self.overhead_bytes -= age_bytes(packet)

    # -- what is sent next ---------------------------------------------------------------------
    def first(self, order: BacklogOrder) -> bytes:
        if order is _STACK:
            if self.row:
                return self.row[-1]
            if self.newest:
                return next(reversed(self.newest.values()))
        elif not self.sorted:
            return next(iter(self.newest.values())) if self.newest else self.row[0]
        return self.sorted.first(order)

    def pop_first(self, order: BacklogOrder) -> bytes:
        self.sent += 1
        if order is _STACK:
            if self.row:
                packet = self.row.pop()
                self.to_sort = min(self.to_sort, len(self.row))
                return packet
            if self.newest:
                return self._pop_newest(last=True)
        elif not self.sorted:
            return self._pop_oldest()
        return self._pop_sorted(order)

    def _pop_oldest(self) -> bytes:
        """Of those that are not sorted."""
        if self.newest:
            return self._pop_newest(last=False)
        if self.to_sort:
            self.to_sort -= 1
        return self.row.popleft()

    def _pop_newest(self, *, last: bool) -> bytes:
        key, packet = self.newest.popitem(last)
        self.overhead_bytes -= _INDEX_BYTES + len(key)
        if not self.newest:
            self.newest = OrderedDict()  # an emptied one keeps its memory
        return packet

    def _pop_sorted(self, order: BacklogOrder) -> bytes:
        self.overhead_bytes -= _INDEX_BYTES
        packet = self.sorted.pop_first(order)
        if not self.sorted:
            self.sorted = _SortedMessages()  # likewise
        return packet

    # -- gaps ----------------------------------------------------------------------------------
    def record_first_dropped(self) -> None:
        """The message that was popped last, the oldest one, is missing."""
        count = 1
        while self.gaps and self.gaps[0][0] <= self.sent:
            count += self.gaps.popleft()[1]
        self.gaps.appendleft([self.sent, count])

    def record_drops(self, count: int) -> None:
        position = self.sent + len(self)
        if self.gaps and self.gaps[-1][0] == position:
            self.gaps[-1][1] += count
        else:
            self.gaps.append([position, count])

    def gap_is_due(self) -> bool:
        return self.gaps[0][0] == self.sent
