"""The journal: records come back as written, to everybody, wherever they were reading."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.shared.segment import ALIVE, COMPACTION_WANTED, TABLE_EPOCH, TABLE_TAIL, Segment
from sbus.shared.subscription_table import (
    RECORD,
    Record,
    SubscriptionTable,
    all_have_read,
    encode_record,
)
from tests.unit.shared.journal_model import read_all, subscribed, unsubscribed, write
from tests.unit.shared.segments import (
    child_holding_the_lock,
    kill_and_reap,
    open_segment,
    small_limits,
    was_woken,
)

FRONT = 2


@pytest.fixture
def segment() -> Iterator[Segment]:
    with open_segment(2) as opened:
        opened.open_lock()
        yield opened


def started(segment: Segment, worker: int | None = None) -> SubscriptionTable:
    table = SubscriptionTable(segment, worker)
    with segment as words:
        table.start(words)
        if worker is not None:
            words[ALIVE] |= 1 << worker
    return table


def read(table: SubscriptionTable, segment: Segment) -> list[Record]:
    with segment as words:
        ranges = table.unread(words)
    return list(table.read_records(ranges))


def is_current(table: SubscriptionTable, segment: Segment) -> bool:
    with segment as words:
        return table.is_current(words)


def wants_compaction(segment: Segment) -> bool:
    with segment as words:
        return bool(words[COMPACTION_WANTED])


def fill(table: SubscriptionTable, segment: Segment) -> int:
    """Append until there is no room; returns how many records of 64 bytes went in."""
    count = 0
    while write(table, segment, subscribed(0, count, bytes(64 - RECORD.size))):
        count += 1
    return count


@given(
    st.lists(
        st.builds(
            Record,
            kind=st.integers(1, 4),
            edge=st.booleans(),
            worker=st.integers(0, 63),
            client=st.integers(0, 2**64 - 1),
            pattern=st.binary(max_size=100),
        ),
        max_size=20,
    )
)
def test_records_come_back_as_they_were_written(records: list[Record]) -> None:
    with open_segment(1) as segment:
        segment.open_lock()
        writer, reader = started(segment, 0), started(segment)
        for record in records:
            assert write(writer, segment, record)
        assert read(reader, segment) == records
        assert read(reader, segment) == []
        assert read_all(segment) == records


def test_several_records_go_in_at_once_or_not_at_all(segment: Segment) -> None:
    writer = started(segment, 0)
    fill(writer, segment)
    with segment as words:
        words[TABLE_TAIL] -= 64  # take the last one back
    before = read_all(segment)
    room = bytes(64 - RECORD.size)
    assert not write(writer, segment, subscribed(0, 1, room), subscribed(0, 2, b""))
    assert read_all(segment) == before
    assert write(writer, segment, subscribed(0, 1, room))


def test_only_edges_make_other_workers_read(segment: Segment) -> None:
    writer, reader = started(segment, 0), started(segment, 1)
    assert is_current(reader, segment)
    write(writer, segment, subscribed(0, 1, b"a", edge=False))
    assert is_current(reader, segment)
    write(writer, segment, subscribed(0, 1, b"b"))
    assert not is_current(reader, segment)
    assert [record.pattern for record in read(reader, segment)] == [b"a", b"b"]
    assert is_current(reader, segment)


def test_a_worker_that_has_read_everything_need_not_read_its_own_records(
    segment: Segment,
) -> None:
    writer, other = started(segment, 0), started(segment, 1)
    write(writer, segment, subscribed(0, 1, b"a"))
    assert is_current(writer, segment)
    assert read(writer, segment) == []
    write(other, segment, subscribed(1, 2, b"b"))
    write(writer, segment, subscribed(0, 1, b"c"))
    assert not is_current(writer, segment)
    assert [record.pattern for record in read(writer, segment)] == [b"b", b"c"]


def test_an_eighth_of_the_arena_is_for_records_that_take_back(segment: Segment) -> None:
    writer = started(segment, 0)
    assert fill(writer, segment) == 4096 // 64 * 7 // 8
    for count in range(4096 // 64 // 8):
        assert write(writer, segment, unsubscribed(0, count, bytes(64 - RECORD.size)))
    assert not write(writer, segment, unsubscribed(0, 0, b""))
    with segment as words:
        statistics = SubscriptionTable(segment).statistics(words)
    assert (statistics.epoch, statistics.used_bytes, statistics.size_bytes) == (0, 4096, 4096)


def test_growth_by_an_eighth_of_the_arena_wakes_the_front_once(segment: Segment) -> None:
    writer = started(segment, 0)
    for count in range(4096 // 8 // 64):
        assert not wants_compaction(segment)
        write(writer, segment, subscribed(0, count, bytes(64 - RECORD.size)))
    assert not was_woken(segment, FRONT)
    write(writer, segment, subscribed(0, 99, b""))
    assert wants_compaction(segment)
    assert was_woken(segment, FRONT)
    write(writer, segment, subscribed(0, 99, b"x"))
    assert not was_woken(segment, FRONT)


def test_an_arena_that_a_compaction_can_empty_is_not_full(segment: Segment) -> None:
    writer = started(segment, 0)
    fill(writer, segment)
    with segment as words:
        assert not writer.is_full(words)


def test_the_other_arena_is_free_once_every_living_worker_has_left_it(segment: Segment) -> None:
    tables = [started(segment, worker) for worker in range(2)]
    with segment as words:
        assert all_have_read(segment, words)
        words[TABLE_EPOCH] += 1
        assert not all_have_read(segment, words)
    for table in tables:
        read(table, segment)
        with segment as words:
            assert not all_have_read(segment, words)
            table.share_epoch(words)
    with segment as words:
        assert all_have_read(segment, words)
        words[TABLE_EPOCH] += 1
        words[ALIVE] = 0
        assert all_have_read(segment, words), "the dead read nothing"


def test_a_worker_killed_while_journalling_has_journalled_nothing() -> None:
    def act(words: memoryview) -> None:
        SubscriptionTable(shared, 0).append(
            words, encode_record(subscribed(0, 1, b"never")), edge=True
        )

    with (
        open_segment(1, small_limits()) as shared,
        child_holding_the_lock(shared, act) as child,
    ):
        shared.open_lock()
        kill_and_reap(child)
        reader = started(shared)
        assert is_current(reader, shared)
        assert read(reader, shared) == []
        write(started(shared, 0), shared, unsubscribed(0, 1, b"a"))
        assert read(reader, shared) == [unsubscribed(0, 1, b"a")]
