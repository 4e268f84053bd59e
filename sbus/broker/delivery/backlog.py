"""What waits for one client, in the order in which that client wants it.

    queue     oldest first                          O(1)
    stack     newest first                          O(1)
    random    largest first, then oldest            O(log n), once it is sorted
    latest    oldest first; a message takes the     O(1), once it has its key
              place of the one with the same key

A *control message* keeps its place: what was accepted before it is sent before it, what comes later
after it. So a backlog is a row of sections; each but the last is ended by a control message. An
order holds within each section, and a change of it re-orders what is there within its section.

A *gap* stands for messages that were dropped. In order `queue` it stands exactly where they are
missing, and neighbours are one gap. The other orders have no such place: there all that is missing
comes first, and so does what was missing when such an order was chosen.

    messages = Σ len(section);  bytes = Σ len(packet)
    every section but the last ends in a control message:  controls = sections - 1
    order ≠ queue  ⇒  no section has a gap
    gap positions of a section are strictly increasing, each between the number of messages sent
    from it and the number ever put in it

A change of order costs nothing, so a client may flip it as it likes. What `random` and `latest`
need to find messages by size or by key is made in pieces, by turns in which they could be sent;
with `latest` also by each message that comes. It lasts until they are sent.

Of an `AgingMessage` is known when it came. One that is too old is dropped where it is the next or
the oldest.
"""

from collections import deque

import msgspec

from sbus.broker.delivery.backlog_changes import apply_changes
from sbus.broker.delivery.backlog_section import (
    AGING_BYTES,
    AgingMessage,
    ControlMessage,
    Section,
)
from sbus.broker.ipc.client_record import BacklogItem, BacklogRecord
from sbus.protocol.controls import BacklogOrder

_QUEUE, _LATEST = BacklogOrder.QUEUE, BacklogOrder.LATEST
"""Under names of this module's own, because looking a member up costs more than using it."""
_INDEXED_PER_MESSAGE = 2
"""So that all have their keys when as many have come as waited before."""


class Gap(msgspec.Struct, frozen=True):
    """`count` messages are missing here."""

    count: int


class Backlog:
    """Messages, gaps and replies for one client. True while anything waits."""

    __slots__ = ("_missing", "_order", "_sections", "bytes", "in_gaps", "messages", "replaced")

    def __init__(self, order: BacklogOrder) -> None:
        self._order = order
        self._sections = deque([Section()])
        self._missing = 0
        """Messages missing at no particular place."""
        self.in_gaps = 0
        """Messages missing at any place."""
        self.messages = 0
        self.bytes = 0
        self.replaced = 0
        """Messages that have given their place to newer ones."""

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
        section = self._sections[-1]
        section.row.append(packet)
        self.messages += 1
        self.bytes += len(packet)
        if self._order is _LATEST:
            self._index(section, min(_INDEXED_PER_MESSAGE, len(section.row)))

    def record_drops(self, count: int) -> None:
        """Note that so many messages are missing here."""
        self.in_gaps += count
        if self._order is _QUEUE:
            self._sections[-1].record_drops(count)
        else:
            self._missing += count

    def append_control(self, packet: bytes, is_reply: bool = False) -> None:
        """Add a control message behind all that is here, ahead of all that comes."""
        self._sections[-1].control = ControlMessage(packet, is_reply)
        self._sections.append(Section())

    def reorder(self, order: BacklogOrder) -> None:
        """Send in this order from now on, what is here already as well."""
        self._order = order
        if order is not _QUEUE:
            for section in self._sections:
                self._missing += sum(count for _, count in section.gaps)
                section.gaps.clear()

    # -- what goes -----------------------------------------------------------------------------
    @property
    def overhead_bytes(self) -> int:
        """What the order and the ages of messages take besides these."""
        return sum(section.overhead_bytes for section in self._sections)

    @property
    def unindexed(self) -> int:
        """Messages that the order needs to find by size or by key before the next is sent."""
        return self._sections[0].unindexed(self._order)

    def index(self, count_max: int) -> int:
        """Do that for some of the `unindexed` messages; returns for how many."""
        return self._index(self._sections[0], min(count_max, self.unindexed))

    def _index(self, section: Section, count: int) -> int:
        for packet in section.index(self._order, count):
            self._forget_replaced(packet)
        return count

    def _forget_replaced(self, packet: bytes) -> None:
        self.replaced += 1
        self.messages -= 1
        self.bytes -= len(packet)

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
            return self._pop_message(section, self._order)
        else:
            assert section.control is not None, "nothing waits"
            self._sections.popleft()
        return None

    def _pop_message(self, section: Section, order: BacklogOrder) -> bytes:
        packet = section.pop_first(order)
        self.messages -= 1
        self.bytes -= len(packet)
        if section.overhead_bytes:
            section.forget_age(packet)
        return packet

    def drop_first(self, section: Section, order: BacklogOrder) -> bytes:
        """Remove the message that is the first of a section in some order, which is missing from
        now on. What stands before it there is missing, too."""
        packet = self._pop_message(section, order)
        self.in_gaps += 1
        if self._order is _QUEUE:
            section.record_first_dropped()
        else:
            self._missing += 1
        return packet

    def clear(self) -> None:
        """Remove everything."""
        self._sections = deque([Section()])
        self._missing = self.in_gaps = self.messages = self.bytes = 0

    # -- elsewhere -----------------------------------------------------------------------------
    def record(self) -> BacklogRecord:
        """What another backlog follows."""
        items: list[BacklogItem] = []
        for section in self._sections:
            for some in section.items():
                items += some
        first = self._sections[0]  # only the section that is sent from has any sorted
        is_sorted = len(first.sorted) + first.to_sort
        return BacklogRecord(missing=self._missing, items=items, sorted=is_sorted)

    def follow(self, changes: BacklogRecord) -> None:
        """Have what another backlog has. This one, whose order is `queue`, has what that had before
        these changes. If these are at its ends, nothing between them is looked at."""
        has_gaps = any(section.gaps for section in self._sections)
        if len(changes.kept) <= 1 and not (changes.replaced and has_gaps):
            for number, packet in changes.replaced.items():
                self._put_at(number, packet)
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
                self._sections[-1].note_age(item)
            elif isinstance(item, int):
                self.record_drops(item)
            else:
                self.append_control(item.packet, item.is_reply)
        self._sections[0].to_sort = changes.sorted

    def _put_at(self, number: int, packet: bytes) -> None:
        """Replace a message; there are no gaps."""
        for section in self._sections:
            if number < len(section.row):
                self.bytes += len(packet) - len(section.row[number])
                section.forget_age(section.row[number])
                section.note_age(packet)
                section.row[number] = packet
                break
            number -= len(section.row) + 1

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
            packet = section.row.pop()
            self.messages -= 1
            self.bytes -= len(packet)
            section.forget_age(packet)
        else:
            self._sections.pop()
            self._sections[-1].control = None

    def check_invariants(self) -> None:
        """AssertionError where a formula above does not hold."""
        packets = [packet for section in self._sections for packet in section]
        assert self.messages == len(packets)
        assert self.bytes == sum(map(len, packets))
        aging = sum(type(packet) is AgingMessage for packet in packets)
        assert self.overhead_bytes >= AGING_BYTES * aging
        gaps = [count for section in self._sections for _, count in section.gaps]
        assert self.in_gaps == self._missing + sum(gaps)
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
            assert section.to_sort <= (0 if section.newest else len(section.row))
