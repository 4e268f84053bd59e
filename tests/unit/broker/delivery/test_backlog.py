"""The backlog against a naive model: a list of what came, looked through from its beginning."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbus.broker.delivery.backlog import Backlog, Gap
from sbus.broker.delivery.backlog_section import ControlMessage
from sbus.protocol.controls import BacklogOrder

ORDERS = st.sampled_from(BacklogOrder)
Item = bytes | Gap | ControlMessage


class Naive:
    """All that waits as it came, each dropped message as a gap of its own."""

    def __init__(self, order: BacklogOrder) -> None:
        self.order = order
        self.items: list[Item] = []
        self.unplaced = 0
        self.sorted: set[bytes] = set()
        self.irreplaceable: set[bytes] = set()
        """Also those that another bus has sorted."""

    def record_drop(self) -> None:
        if self.order is BacklogOrder.QUEUE:
            self.items.append(Gap(1))
        else:
            self.unplaced += 1

    def reorder(self, order: BacklogOrder) -> None:
        self.order = order
        if order is not BacklogOrder.QUEUE:
            self.unplaced += sum(isinstance(item, Gap) for item in self.items)
            self.items = [item for item in self.items if not isinstance(item, Gap)]

    def sort(self, count: int) -> None:
        """So many more messages are sorted by size, which are not replaced."""
        unsorted = [item for item in self.section() if item not in self.sorted]
        self.sorted |= {item for item in unsorted[:count] if isinstance(item, bytes)}
        self.irreplaceable |= self.sorted

    def section(self) -> list[Item]:
        replies = [at for at, item in enumerate(self.items) if isinstance(item, ControlMessage)]
        return self.items[: replies[0]] if replies else self.items[:]

    def replace(self) -> None:
        """Between two replies, a message takes the place of an earlier one with its key."""
        if self.order is not BacklogOrder.LATEST:
            return
        self.sorted |= self.irreplaceable
        left: list[Item] = []
        places: dict[bytes, int] = {}
        for item in self.items:
            if isinstance(item, bytes) and item not in self.irreplaceable:
                key = item[: item.index(0)]
                if key in places:
                    left[places[key]] = item
                    continue
                places[key] = len(left)
            elif isinstance(item, ControlMessage):
                places.clear()
            left.append(item)
        self.items = left

    def messages(self) -> list[bytes]:
        return [item for item in self.items if isinstance(item, bytes)]

    def take(self) -> Item:
        """Remove and return what is to be sent next."""
        if self.unplaced:
            gap, self.unplaced = Gap(self.unplaced), 0
            return gap
        section = self.section()
        if not section or isinstance(section[0], Gap):
            return self.take_gap(section) if section else self.items.pop(0)
        messages = [item for item in section if isinstance(item, bytes)]
        chosen = {
            BacklogOrder.QUEUE: messages[0],
            BacklogOrder.STACK: messages[-1],
            BacklogOrder.RANDOM: max(messages, key=len),
            BacklogOrder.LATEST: messages[0],
        }[self.order]
        self.items.remove(chosen)
        return chosen

    def take_gap(self, section: list[Item]) -> Gap:
        count = 0
        while count < len(section) and isinstance(section[count], Gap):
            count += 1
        del self.items[:count]
        return Gap(count)


class BacklogMachine(RuleBasedStateMachine):
    @initialize(order=ORDERS)
    def begin(self, order: BacklogOrder) -> None:
        self.real = Backlog(order)
        self.naive = Naive(order)
        self.count = 0

    def distinct(self, size: int) -> bytes:
        """With one of three keys."""
        self.count += 1
        return b"MSG %d\0%06d" % (self.count % 7 % 3, self.count) + bytes(size)

    def index_all(self) -> None:
        for section in self.real._sections:
            self.real._index(section, section.unindexed(self.real._order))
        self.naive.replace()

    @rule(sizes=st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=12))
    def come(self, sizes: list[int | None]) -> None:
        """Messages of these sizes; those without one are lost."""
        for size in sizes:
            if size is None:
                self.real.record_drops(1)
                self.naive.record_drop()
            else:
                packet = self.distinct(size)
                self.real.append(packet)
                self.naive.items.append(packet)
        if self.naive.order is BacklogOrder.LATEST:
            self.index_all()

    @rule()
    def reply(self) -> None:
        packet = self.distinct(0)
        self.real.append_control(packet)
        self.naive.items.append(ControlMessage(packet))

    @rule(order=ORDERS)
    def reorder(self, order: BacklogOrder) -> None:
        self.real.reorder(order)
        self.naive.reorder(order)
        if order is BacklogOrder.LATEST:
            self.index_all()

    @precondition(lambda self: bool(self.real))
    @rule(times=st.integers(1, 8))
    def pop(self, times: int) -> None:
        while self.real and times:
            self.index(1_000_000)
            first = self.real.first()
            assert self.real.first() == first
            self.real.pop()
            assert first == self.naive.take()
            times -= 1

    @rule(count=st.integers(0, 6))
    def index(self, count: int) -> None:
        """A piece of it."""
        before = self.real.unindexed
        done = min(count, before)
        assert self.real.index(count) == done
        assert self.real.unindexed == before - done
        self.naive.sort(done)

    @rule()
    def restore_elsewhere(self) -> None:
        """By another bus."""
        record = self.real.record()
        self.real = Backlog(BacklogOrder.QUEUE)
        self.real.follow(record)
        assert self.real.record() == record
        self.naive.sorted.clear()
        self.reorder(self.naive.order)

    @rule()
    def clear(self) -> None:
        self.real.clear()
        self.naive.items.clear()
        self.naive.unplaced = 0

    @invariant()
    def agrees(self) -> None:
        self.real.check_invariants()
        messages = self.naive.messages()
        assert self.real.messages == len(messages)
        assert self.real.bytes == sum(map(len, messages))
        assert self.real.controls == sum(
            isinstance(item, ControlMessage) for item in self.naive.items
        )
        assert bool(self.real) == bool(self.naive.items or self.naive.unplaced)

    def teardown(self) -> None:
        if hasattr(self, "real"):
            self.pop(1_000_000)
            assert not self.real
            self.agrees()


TestBacklog = BacklogMachine.TestCase


def taken(backlog: Backlog) -> list[Item]:
    items: list[Item] = []
    while backlog:
        backlog.index(1_000_000)
        items.append(backlog.first())
        backlog.pop()
    return items


def test_choosing_an_order_sorts_nothing() -> None:
    backlog = Backlog(BacklogOrder.QUEUE)
    for number in range(1_000):
        backlog.append(bytes(number % 100))
    backlog.reorder(BacklogOrder.RANDOM)
    assert (backlog.overhead_bytes, backlog.unindexed) == (0, 1_000)


def message(key: str, payload: int) -> bytes:
    return b"MSG %s\0%d" % (key.encode(), payload)


def test_what_waited_before_is_replaced_when_as_many_messages_have_come() -> None:
    """The client was served elsewhere, or has chosen the order only now."""
    backlog = Backlog(BacklogOrder.QUEUE)
    for number in range(100):
        backlog.append(message(str(number % 10), number))
    backlog.reorder(BacklogOrder.LATEST)
    assert backlog.messages == 100
    for number in range(100, 200):
        backlog.append(message(str(number % 10), number))
    assert backlog.unindexed == 0
    assert taken(backlog) == [message(str(number % 10), number) for number in range(190, 200)]
    assert backlog.replaced == 190
