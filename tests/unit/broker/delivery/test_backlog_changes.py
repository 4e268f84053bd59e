"""Changes of a backlog: with them a reader that has the earlier items has all that waits."""

from collections.abc import Iterator

from hypothesis import example, given
from hypothesis import strategies as st

from sbus.broker.delivery.backlog import Backlog
from sbus.broker.delivery.backlog_changes import changes_since
from sbus.broker.ipc.client_record import BacklogItem, BacklogRecord
from sbus.protocol.controls import BacklogOrder

PACKETS = st.sampled_from([b"MSG a\0", b"MSG a\0", b"MSG b\0", b"MSG a\0longer", b"MSG b\0longer"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), PACKETS),
        st.tuples(st.just("drop"), st.integers(1, 3)),
        st.tuples(st.just("control"), PACKETS),
        st.tuples(st.just("pop"), st.none()),
        st.tuples(st.just("reorder"), st.sampled_from(BacklogOrder)),
    ),
    max_size=40,
)


def take(backlog: Backlog, steps: list[tuple[str, object]]) -> None:
    for name, value in steps:
        if name == "append":
            assert isinstance(value, bytes)
            backlog.append(value)
        elif name == "drop":
            assert isinstance(value, int)
            backlog.record_drops(value)
        elif name == "control":
            assert isinstance(value, bytes)
            backlog.append_control(value)
        elif isinstance(value, BacklogOrder):
            backlog.reorder(value)
        elif backlog:
            backlog.index(backlog.unindexed)
            backlog.pop()


def messages(count: int, first: int = 0) -> list[BacklogItem]:
    return [b"%d" % number for number in range(first, first + count)]


def rest(backlog: Backlog) -> Iterator[object]:
    while backlog:
        backlog.index(backlog.unindexed)
        yield backlog.first()
        backlog.pop()


SOME_SORTED: list[tuple[str, object]] = [
    *[("append", b"MSG a\0")] * 3,
    ("reorder", BacklogOrder.RANDOM),
    ("pop", None),
]
"""Two messages that nothing replaces any more."""


@given(
    st.lists(STEPS, min_size=1, max_size=4),
    st.sampled_from(BacklogOrder),
    st.lists(PACKETS, max_size=4),
    st.booleans(),
)
@example(rounds=[SOME_SORTED], order=BacklogOrder.LATEST, later=[], by_key=False)
@example(
    rounds=[SOME_SORTED, [("pop", None)]],
    order=BacklogOrder.LATEST,
    later=[b"MSG a\0"],
    by_key=False,
)
@example(rounds=[SOME_SORTED], order=BacklogOrder.LATEST, later=[b"MSG a\0"], by_key=False)
def test_a_backlog_that_follows_changes_is_as_the_other(
    rounds: list[list[tuple[str, object]]],
    order: BacklogOrder,
    later: list[bytes],
    by_key: bool,
) -> None:
    backlog, other = Backlog(BacklogOrder.QUEUE), Backlog(BacklogOrder.QUEUE)
    before = BacklogRecord()
    for steps in rounds:
        take(backlog, steps)
        now = backlog.record()
        other.follow(changes_since(before, now, by_key=by_key))
        other.check_invariants()
        assert other.record() == now
        before = now
    for one in (backlog, other):
        one.reorder(order)
        for packet in later:
            one.append(packet)
    assert list(rest(other)) == list(rest(backlog))


def test_only_what_has_come_is_copied() -> None:
    before = messages(10_000)
    now = BacklogRecord(items=[*before[3_000:], *messages(5, 10_000)])
    changes = changes_since(BacklogRecord(items=before), now)
    assert changes.kept == [(3_000, 10_000)]
    assert changes.items == messages(5, 10_000)


def test_messages_that_were_sent_out_of_order_are_left_out() -> None:
    before = messages(5_000)
    now = BacklogRecord(items=[it for number, it in enumerate(before) if number % 2_000 != 1_999])
    changes = changes_since(BacklogRecord(items=before), now)
    assert changes.kept == [(0, 1_999), (2_000, 3_999), (4_000, 5_000)]
    assert changes.items == []


def test_only_what_has_replaced_others_is_copied_again() -> None:
    backlog, other = Backlog(BacklogOrder.LATEST), Backlog(BacklogOrder.QUEUE)
    for number in range(1_000):
        backlog.append(b"MSG %d\0old" % number)
    before = backlog.record()
    other.follow(before)
    for number in (0, 10, 11, 999, 1_000):
        backlog.append(b"MSG %d\0newer" % number)
    changes = changes_since(before, backlog.record(), by_key=True)
    assert changes.kept == [(0, 1_000)]
    assert changes.replaced == {number: b"MSG %d\0newer" % number for number in (0, 10, 11, 999)}
    assert changes.items == [b"MSG 1000\0newer"]
    other.follow(changes)
    other.check_invariants()
    assert other.record() == backlog.record()


def test_messages_behind_a_gap_are_replaced() -> None:
    """The order was chosen since the earlier record."""
    backlog, other = Backlog(BacklogOrder.QUEUE), Backlog(BacklogOrder.QUEUE)
    backlog.record_drops(3)
    for key in (b"a", b"b"):
        backlog.append(b"MSG %b\0old" % key)
    before = backlog.record()
    other.follow(before)
    backlog.reorder(BacklogOrder.LATEST)
    for key in (b"a", b"b"):
        backlog.append(b"MSG %b\0newer" % key)
    changes = changes_since(before, backlog.record(), by_key=True)
    assert len(changes.replaced) == 2
    other.follow(changes)
    other.check_invariants()
    assert other.record() == backlog.record()


class Compared(bytes):
    """A message that counts how often any of them is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return bytes.__eq__(self, other)

    __hash__ = bytes.__hash__


def test_messages_that_were_all_replaced_are_not_compared_over_and_over() -> None:
    """A client can have 65,536, and nobody is served meanwhile."""
    before: list[BacklogItem] = [Compared(b"MSG %d\0old" % number) for number in range(5_000)]
    now: list[BacklogItem] = [Compared(b"MSG %d\0newer" % number) for number in range(5_000)]
    Compared.comparisons = 0
    changes = changes_since(BacklogRecord(items=before), BacklogRecord(items=now), by_key=True)
    assert len(changes.replaced) == 5_000
    assert Compared.comparisons <= 2 * 5_000
