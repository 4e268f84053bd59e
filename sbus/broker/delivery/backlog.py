"""What waits for one client, in the order in which that client wants it.

    queue     oldest first                          O(1)
    stack     newest first                          O(1)
    random    largest first, then oldest            O(log n)

A *control message* keeps its place: what was accepted before it is sent before it, what comes later
after it. So a backlog is a row of sections; each but the last is ended by a control message. An
order holds within each section, and a change of it re-orders what is there within its section.

A *gap* stands for messages that were dropped. In order `queue` it stands exactly where they are
missing, and neighbours are one gap. The other orders have no such place: there all that is missing
comes first, and so does what was missing when such an order was chosen.

    messages = Σ len(section);  bytes = Σ len(packet)
    every section but the last ends in a control message:  controls = sections - 1
    order ≠ queue  ⇒  no section has a gap
    order ≠ random  ⇒  no section without messages is sorted by size
    gap positions of a section are strictly increasing, each between the number of messages sent
    from it and the number ever put in it

All changes of order together cost no more than the messages that came, so a client may flip it as
it likes: a section is sorted by size when `random` is first chosen, and stays sorted until it is
empty.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

import msgspec
from sortedcontainers import SortedList

from sbus.protocol.controls import BacklogOrder

_QUEUE, _STACK, _RANDOM = BacklogOrder.QUEUE, BacklogOrder.STACK, BacklogOrder.RANDOM
"""Under names of this module's own, because looking a member up costs more than using it."""


class Gap(msgspec.Struct, frozen=True):
    """`count` messages are missing here."""

    count: int


class ControlMessage(msgspec.Struct, frozen=True):
    """A control message, at its place."""

    packet: bytes


class _Row(deque[bytes]):
    """Messages in the order in which they came."""

    __slots__ = ()

    def first(self, order: BacklogOrder) -> bytes:
        return self[-1 if order is _STACK else 0]

    def pop_first(self, order: BacklogOrder) -> bytes:
        return self.pop() if order is _STACK else self.popleft()


class _SortedRow:
    """Messages in the order in which they came, and sorted by size as well."""

    __slots__ = ("_by_number", "_by_size", "_next")

    def __init__(self, packets: Iterable[bytes]) -> None:
        self._by_number = OrderedDict(enumerate(packets))
        self._by_size = SortedList((-len(packet), n) for n, packet in self._by_number.items())
        self._next = len(self._by_number)

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

    __slots__ = ("control", "gaps", "messages", "sent")

    def __init__(self, order: BacklogOrder) -> None:
        self.messages: _Row | _SortedRow = _Row()
        self.sent = 0
        self.gaps: deque[list[int]] = deque()
        """Each as how many messages of this section are sent before it, and its count."""
        self.control: ControlMessage | None = None
        self.arrange(order)

    def arrange(self, order: BacklogOrder) -> None:
        if order is not _RANDOM and not self.messages:
            self.messages = _Row()
        elif order is _RANDOM and not isinstance(self.messages, _SortedRow):
            self.messages = _SortedRow(self.messages)

    def pop_first(self, order: BacklogOrder) -> bytes:
        packet = self.messages.pop_first(order)
        self.sent += 1
        if not self.messages:
            self.arrange(order)
        return packet

    def record_drops(self, count: int) -> None:
        position = self.sent + len(self.messages)
        if self.gaps and self.gaps[-1][0] == position:
            self.gaps[-1][1] += count
        else:
            self.gaps.append([position, count])

    def gap_is_due(self) -> bool:
        return self.gaps[0][0] == self.sent


class Backlog:
    """Messages, gaps and replies for one client. True while anything waits."""

    __slots__ = ("_missing", "_order", "_sections", "bytes", "messages")

    def __init__(self, order: BacklogOrder) -> None:
        self._order = order
        self._sections = deque([_Section(order)])
        self._missing = 0
        """Messages missing at no particular place."""
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
        self._sections[-1].messages.append(packet)
        self.messages += 1
        self.bytes += len(packet)

    def record_drops(self, count: int) -> None:
        """Note that so many messages are missing here."""
        if self._order is _QUEUE:
            self._sections[-1].record_drops(count)
        else:
            self._missing += count

    def append_control(self, packet: bytes) -> None:
        """Add a control message behind all that is here, ahead of all that comes."""
        self._sections[-1].control = ControlMessage(packet)
        self._sections.append(_Section(self._order))

    def reorder(self, order: BacklogOrder) -> None:
        """Send in this order from now on, what is here already as well."""
        self._order = order
        for section in self._sections:
            section.arrange(order)
            if order is not _QUEUE:
                self._missing += sum(count for _, count in section.gaps)
                section.gaps.clear()

    # -- what goes -----------------------------------------------------------------------------
    def first(self) -> bytes | Gap | ControlMessage:
        """What is to be sent next; there must be something."""
        if self._missing:
            return Gap(self._missing)
        section = self._sections[0]
        if section.gaps and section.gap_is_due():
            return Gap(section.gaps[0][1])
        if section.messages:
            return section.messages.first(self._order)
        assert section.control is not None, "nothing waits"
        return section.control

    def pop(self) -> bytes | None:
        """Remove what `first` returns; returns it if it is a message."""
        section = self._sections[0]
        if self._missing:
            self._missing = 0
        elif section.gaps and section.gap_is_due():
            section.gaps.popleft()
        elif section.messages:
            packet = section.pop_first(self._order)
            self.messages -= 1
            self.bytes -= len(packet)
            return packet
        else:
            assert section.control is not None, "nothing waits"
            self._sections.popleft()
        return None

    def clear(self) -> None:
        """Remove everything, sorted rows as well."""
        self._sections = deque([_Section(self._order)])
        self._missing = self.messages = self.bytes = 0

    def check_invariants(self) -> None:
        """AssertionError where a formula above does not hold."""
        packets = [packet for section in self._sections for packet in section.messages]
        assert self.messages == len(packets)
        assert self.bytes == sum(map(len, packets))
        assert [section.control is None for section in self._sections] == (
            [False] * self.controls + [True]
        )
        for section in self._sections:
            positions = [position for position, _ in section.gaps]
            assert positions == sorted(set(positions))
            assert all(
                section.sent <= position <= section.sent + len(section.messages)
                for position in positions
            )
            assert not positions or self._order is _QUEUE
            assert all(count > 0 for _, count in section.gaps)
            assert section.messages or isinstance(section.messages, _Row) or self._order is _RANDOM
