"""What waits for one client, in the order in which that client wants it.

    queue     oldest first                          O(1)
    stack     newest first                          O(1)
    random    largest first, then oldest            O(log n), once it is sorted

A *control message* keeps its place: what was accepted before it is sent before it, what comes later
after it. So a backlog is a row of sections; each but the last is ended by a control message. An
order holds within each section, and a change of it re-orders what is there within its section.

A *gap* stands for messages that were dropped. In order `queue` it stands exactly where they are
missing, and neighbours are one gap. The other orders have no such place: there all that is missing
comes first, and so does what was missing when such an order was chosen.

    messages = Σ len(section);  bytes = Σ len(packet)
    every section but the last ends in a control message:  controls = sections - 1
    order ≠ queue  ⇒  no section has a gap
    what is sorted by size was put into its section before what is not
    gap positions of a section are strictly increasing, each between the number of messages sent
    from it and the number ever put in it

A change of order costs nothing, so a client may flip it as it likes. With `random`, the messages to
be sent next are sorted by size in pieces, by turns in which they could be sent, and stay sorted.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import msgspec
from sortedcontainers import SortedList

from sbus.broker.delivery.backlog_changes import apply_changes
from sbus.broker.ipc.client_record import BacklogItem, BacklogRecord, ReplyRecord
from sbus.protocol.controls import BacklogOrder

_QUEUE, _STACK, _RANDOM = BacklogOrder.QUEUE, BacklogOrder.STACK, BacklogOrder.RANDOM
"""Under names of this module's own, because looking a member up costs more than using it."""


class Gap(msgspec.Struct, frozen=True):
    """`count` messages are missing here."""

    count: int


class ControlMessage(msgspec.Struct, frozen=True):
    """A control message, at its place."""

    packet: bytes


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


class _Section:
    """Messages and gaps between two control messages, and the one that ends it."""

    __slots__ = ("control", "gaps", "row", "sent", "sorted")

    def __init__(self) -> None:
        self.sorted = _SortedMessages()
        self.row: deque[bytes] = deque()
        """Messages that came after those."""
        self.sent = 0
        self.gaps: deque[list[int]] = deque()
        """Each as how many messages of this section are sent before it, and its count."""
        self.control: ControlMessage | None = None

    def __len__(self) -> int:
        return len(self.sorted) + len(self.row)

    def __iter__(self) -> Iterator[bytes]:
        return chain(self.sorted, self.row) if self.sorted else iter(self.row)

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
            yield (ReplyRecord(self.control.packet),)

    def sort(self, count: int) -> int:
        for _ in range(count):
            self.sorted.append(self.row.popleft())
        return count

    def first(self, order: BacklogOrder) -> bytes:
        if self.sorted and not (order is _STACK and self.row):
            return self.sorted.first(order)
        return self.row[-1 if order is _STACK else 0]

    def pop_first(self, order: BacklogOrder) -> bytes:
        self.sent += 1
        if not self.sorted or (order is _STACK and self.row):
            return self.row.pop() if order is _STACK else self.row.popleft()
        packet = self.sorted.pop_first(order)
        if not self.sorted:
            self.sorted = _SortedMessages()  # an emptied one keeps its memory
        return packet

    def record_drops(self, count: int) -> None:
        position = self.sent + len(self)
        if self.gaps and self.gaps[-1][0] == position:
            self.gaps[-1][1] += count
        else:
            self.gaps.append([position, count])

    def gap_is_due(self) -> bool:
        return self.gaps[0][0] == self.sent


class Backlog:
    """Messages, gaps and replies for one client. True while anything waits."""

    __slots__ = ("_missing", "_order", "_sections", "bytes", "in_gaps", "messages")

    def __init__(self, order: BacklogOrder) -> None:
        self._order = order
        self._sections = deque([_Section()])
        self._missing = 0
        """Messages missing at no particular place."""
        self.in_gaps = 0
        """Messages missing at any place."""
        self.messages = 0
        self.bytes = 0

    @property
    def controls(self) -> int:
        """Replies that wait."""
        return len(self._sections) - 1

    def __bool__(self) -> bool:
        last = self._sections[-1]
        return bool(self.messages or self._missing or last.gaps or len(self._sections) > 1)

    # -- what comes ----------------------------------------------------------------------------
    def append(self, packet: bytes) -> None:
        """Add a message."""
        self._sections[-1].row.append(packet)
        self.messages += 1
        self.bytes += len(packet)

    def record_drops(self, count: int) -> None:
        """Note that so many messages are missing here."""
        self.in_gaps += count
        if self._order is _QUEUE:
            self._sections[-1].record_drops(count)
        else:
            self._missing += count

    def append_control(self, packet: bytes) -> None:
        """Add a control message behind all that is here, ahead of all that comes."""
        self._sections[-1].control = ControlMessage(packet)
        self._sections.append(_Section())

    def reorder(self, order: BacklogOrder) -> None:
        """Send in this order from now on, what is here already as well."""
        self._order = order
        if order is not _QUEUE:
            for section in self._sections:
                self._missing += sum(count for _, count in section.gaps)
                section.gaps.clear()

    # -- what goes -----------------------------------------------------------------------------
    @property
    def sorted(self) -> int:
        """Messages that are sorted by size."""
        return len(self._sections[0].sorted)

    @property
    def unsorted(self) -> int:
        """Messages that the order needs sorted before the next is sent."""
        return len(self._sections[0].row) if self._order is _RANDOM else 0

    def sort(self, count_max: int) -> int:
        """Sort some of the `unsorted` messages; returns how many."""
        return self._sections[0].sort(min(count_max, self.unsorted))

    def first(self) -> bytes | Gap | ControlMessage:
        """What is to be sent next, as far as messages are sorted; there must be something."""
        if self._missing:
            return Gap(self._missing)
        section = self._sections[0]
        if section.gaps and section.gap_is_due():
            return Gap(section.gaps[0][1])
        if len(section):
            return section.first(self._order)
        assert section.control is not None, "nothing waits"
        return section.control

    def pop(self) -> bytes | None:
        """Remove what `first` returns; returns it if it is a message."""
        section = self._sections[0]
        if self._missing:
            self.in_gaps -= self._missing
            self._missing = 0
        elif section.gaps and section.gap_is_due():
            self.in_gaps -= section.gaps.popleft()[1]
        elif len(section):
            packet = section.pop_first(self._order)
            self.messages -= 1
            self.bytes -= len(packet)
            return packet
        else:
            assert section.control is not None, "nothing waits"
            self._sections.popleft()
        return None

    def clear(self) -> None:
        """Remove everything."""
        self._sections = deque([_Section()])
        self._missing = self.in_gaps = self.messages = self.bytes = 0

    # -- elsewhere -----------------------------------------------------------------------------
    def record(self) -> BacklogRecord:
        """What another backlog follows."""
        items: list[BacklogItem] = []
        for section in self._sections:
            for some in section.items():
                items += some
        return BacklogRecord(missing=self._missing, items=items)

    def follow(self, changes: BacklogRecord) -> None:
        """Have what another backlog has. This one, whose order is `queue`, has what that had before
        these changes. If these are at its ends, nothing between them is looked at."""
        if len(changes.kept) <= 1:
            self._trim(*(changes.kept or [(0, 0)])[0])
            items = changes.items
        else:
            items = self.record().items
            apply_changes(items, changes)
            Backlog.clear(self)
        self.in_gaps += changes.missing - self._missing
        self._missing = changes.missing
        for item in items:
            if isinstance(item, bytes):
                self.append(item)
            elif isinstance(item, int):
                self.record_drops(item)
            else:
                self.append_control(item.packet)

    def _trim(self, start: int, end: int) -> None:
        """Remove all but these messages, gaps and replies, as they are counted in records."""
        gaps = sum(len(section.gaps) for section in self._sections)
        for _ in range(end, self.messages + gaps + self.controls):
            self._remove_last()
        self.in_gaps -= self._missing
        self._missing = 0
        for _ in range(start):
            Backlog.pop(self)

    def _remove_last(self) -> None:
        section = self._sections[-1]
        if section.gaps and section.gaps[-1][0] == section.sent + len(section):
            self.in_gaps -= section.gaps.pop()[1]
        elif section.row:
            self.messages -= 1
            self.bytes -= len(section.row.pop())
        else:
            self._sections.pop()
            self._sections[-1].control = None

    def check_invariants(self) -> None:
        """AssertionError where a formula above does not hold."""
        packets = [packet for section in self._sections for packet in section]
        assert self.messages == len(packets)
        assert self.bytes == sum(map(len, packets))
        gaps = [count for section in self._sections for _, count in section.gaps]
        assert self.in_gaps == self._missing + sum(gaps)
        assert self.sorted == sum(len(section.sorted) for section in self._sections)
        assert [section.control is None for section in self._sections] == (
            [False] * self.controls + [True]
        )
        for section in self._sections:
            positions = [position for position, _ in section.gaps]
            assert positions == sorted(set(positions))
            assert all(
                section.sent <= position <= section.sent + len(section) for position in positions
            )
            assert not positions or self._order is _QUEUE
            assert all(count > 0 for _, count in section.gaps)
