"""What waits for one client, in the order in which that client wants it.

    queue     oldest first                          O(1)
    stack     newest first                          O(1)
    random    largest first, then oldest            O(log n)

A *reply* is a barrier: what was accepted before it is sent before it, what comes later after it. So
a backlog is a row of sections; each is ended by a reply, but for the last. An order holds within
each section, and a change of it re-orders what is there within its section.

A *gap* stands for messages that were dropped. In order `queue` it stands exactly where they are
missing, and neighbours are one gap. The other orders have no such place: there all that is missing
comes first, and so does what was missing when such an order was chosen.

    messages = Σ len(section);  bytes = Σ len(packet)
    every section but the last ends in a reply:  replies = sections - 1
    order ≠ queue  ⇒  no section has a gap
    order ≠ random  ⇒  no section without messages has an index
    gap positions of a section grow strictly, from its messages sent to those ever put in it

All changes of order together cost no more than the messages that came, so a client may flip it as
it likes: a section is indexed by size when `random` is first chosen, and keeps the index until it
is empty.

Pure: knows no socket, no limit, and not what becomes of what it hands out.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

import msgspec

from sbus.protocol.controls import BacklogOrder

_QUEUE, _STACK, _RANDOM = BacklogOrder.QUEUE, BacklogOrder.STACK, BacklogOrder.RANDOM
"""Under names of this module's own, because looking a member up costs more than using it."""


class Gap(msgspec.Struct, frozen=True):
    """`count` messages are missing here."""

    count: int


class Reply(msgspec.Struct, frozen=True):
    """A packet of the server's own, at its place."""

    packet: bytes


class _Row(deque[bytes]):
    """Messages as they came; both ends can be taken."""

    __slots__ = ()

    def first(self, order: BacklogOrder) -> bytes:
        return self[-1 if order is _STACK else 0]

    def drop_first(self, order: BacklogOrder) -> None:
        if order is _STACK:
            self.pop()
        else:
            self.popleft()


class _Sized:
    """Messages as they came, numbered, and an index of them by size.

    The index forgets only what it finds gone at its top; when most of it is gone it is made anew.

        live ⊆ {number of each entry of the index};  len(index) <= 2 * len(live) + 1
    """

    __slots__ = ("_by_size", "_live", "_next")

    def __init__(self, packets: Iterable[bytes]) -> None:
        self._live = OrderedDict(enumerate(packets))
        self._next = len(self._live)
        self._index()

    def _index(self) -> None:
        self._by_size = [(-len(packet), number) for number, packet in self._live.items()]
        heapq.heapify(self._by_size)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._live.values())

    def append(self, packet: bytes) -> None:
        self._live[self._next] = packet
        heapq.heappush(self._by_size, (-len(packet), self._next))
        self._next += 1

    def first(self, order: BacklogOrder) -> bytes:
        return self._live[self._first_number(order)]

    def drop_first(self, order: BacklogOrder) -> None:
        del self._live[self._first_number(order)]
        if len(self._by_size) > 2 * len(self._live) + 1:
            self._index()

    def _first_number(self, order: BacklogOrder) -> int:
        if order is _QUEUE:
            return next(iter(self._live))
        if order is _STACK:
            return next(reversed(self._live))
        while self._by_size[0][1] not in self._live:
            heapq.heappop(self._by_size)
        return self._by_size[0][1]

    def check_invariants(self) -> None:
        assert self._live.keys() <= {number for _, number in self._by_size}
        assert len(self._by_size) <= 2 * len(self._live) + 1


class _Section:
    """Messages and gaps between two replies, and the reply that ends it."""

    __slots__ = ("gaps", "messages", "reply", "sent")

    def __init__(self) -> None:
        self.messages: _Row | _Sized = _Row()
        self.sent = 0
        self.gaps: deque[list[int]] = deque()
        """Each as how many messages of this section are sent before it, and its count."""
        self.reply: Reply | None = None

    def arrange(self, order: BacklogOrder) -> None:
        if order is not _RANDOM and not self.messages:
            self.messages = _Row()
        elif order is _RANDOM and not isinstance(self.messages, _Sized):
            self.messages = _Sized(self.messages)

    def drop_first(self, order: BacklogOrder) -> None:
        self.messages.drop_first(order)
        self.sent += 1
        if not self.messages:
            self.arrange(order)

    def lose(self) -> None:
        position = self.sent + len(self.messages)
        if self.gaps and self.gaps[-1][0] == position:
            self.gaps[-1][1] += 1
        else:
            self.gaps.append([position, 1])

    def gap_is_due(self) -> bool:
        return bool(self.gaps) and self.gaps[0][0] == self.sent


class Backlog:
    """Messages, gaps and replies for one client. True while anything waits."""

    __slots__ = ("_missing", "_order", "_sections", "bytes", "messages")

    def __init__(self, order: BacklogOrder) -> None:
        self._order = order
        self._sections: deque[_Section] = deque()
        self._missing = 0
        """Messages missing at no particular place."""
        self.messages = 0
        self.bytes = 0
        self._begin_section()

    def _begin_section(self) -> None:
        section = _Section()
        section.arrange(self._order)
        self._sections.append(section)

    @property
    def order(self) -> BacklogOrder:
        return self._order

    @property
    def replies(self) -> int:
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

    def lose(self) -> None:
        """Note that a message is missing here."""
        if self._order is _QUEUE:
            self._sections[-1].lose()
        else:
            self._missing += 1

    def reply(self, packet: bytes) -> None:
        """Add a packet behind all that is here, ahead of all that comes."""
        self._sections[-1].reply = Reply(packet)
        self._begin_section()

    def reorder(self, order: BacklogOrder) -> None:
        """Send in this order from now on, what is here already as well."""
        self._order = order
        for section in self._sections:
            section.arrange(order)
            if order is not _QUEUE:
                self._missing += sum(count for _, count in section.gaps)
                section.gaps.clear()

    # -- what goes -----------------------------------------------------------------------------
    def first(self) -> bytes | Gap | Reply:
        """What is to be sent next: a message, a gap or a reply. There must be something."""
        if self._missing:
            return Gap(self._missing)
        section = self._sections[0]
        if section.gap_is_due():
            return Gap(section.gaps[0][1])
        if section.messages:
            return section.messages.first(self._order)
        assert section.reply is not None, "nothing waits"
        return section.reply

    def pop(self) -> None:
        """Drop what `first` returns."""
        section = self._sections[0]
        if self._missing:
            self._missing = 0
        elif section.gap_is_due():
            section.gaps.popleft()
        elif section.messages:
            self.bytes -= len(section.messages.first(self._order))
            self.messages -= 1
            section.drop_first(self._order)
        else:
            assert section.reply is not None, "nothing waits"
            self._sections.popleft()

    def clear(self) -> None:
        """Drop everything, indexes as well."""
        self._sections.clear()
        self._missing = self.messages = self.bytes = 0
        self._begin_section()

    def check_invariants(self) -> None:
        """AssertionError where a formula above does not hold."""
        packets = [packet for section in self._sections for packet in section.messages]
        assert self.messages == len(packets)
        assert self.bytes == sum(map(len, packets))
        assert [section.reply is None for section in self._sections] == (
            [False] * self.replies + [True]
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
            if isinstance(section.messages, _Sized):
                assert section.messages or self._order is _RANDOM
                section.messages.check_invariants()
