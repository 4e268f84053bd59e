"""The journal: records come back as written, to everybody, wherever they were reading."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

import pytest

from sbus.shared.compaction import Compaction
from sbus.shared.shared_memory import (
    ALIVE,
    COMPACTION_WANTED,
    EPOCH_SEEN,
    TABLE_EPOCH,
    WORDS_PER_WORKER,
    WORKER_WORDS,
    SharedMemory,
)
from sbus.shared.subscription_table import (
    RECORD,
    RULE_ADDED,
    RULE_REMOVED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WORKER_RESET,
    Record,
    SubscriptionTable,
    all_have_read,
    read_records,
)
from tests.unit.shared.journal_model import read_on, subscribed, unsubscribed, write
from tests.unit.shared.memories import (
    open_memory,
    small_limits,
    was_woken,
)

FRONT = 2


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(2) as opened:
        opened.lock.open()
        yield opened


def started(memory: SharedMemory, worker: int | None = None) -> SubscriptionTable:
    table = SubscriptionTable(memory, worker)
    with memory.lock as words:
        table.start(words)
        if worker is not None:
            words[ALIVE] |= 1 << worker
    return table


def read(table: SubscriptionTable, memory: SharedMemory) -> list[Record]:
    return list(read_on(table, memory))


def is_current(table: SubscriptionTable, memory: SharedMemory) -> bool:
    with memory.lock as words:
        return table.is_current(words)


def follow(table: SubscriptionTable, memory: SharedMemory) -> bool:
    with memory.lock as words:
        return table.follow(words)


def wants_compaction(memory: SharedMemory) -> bool:
    with memory.lock as words:
        return bool(words[COMPACTION_WANTED])


def fill(table: SubscriptionTable, memory: SharedMemory) -> int:
    """Append until there is no room; returns how many records of 64 bytes went in."""
    count = 0
    while write(table, memory, subscribed(0, count, bytes(64 - RECORD.size))):
        count += 1
    return count


def test_only_edges_make_other_workers_read(memory: SharedMemory) -> None:
    writer, reader = started(memory, 0), started(memory, 1)
    assert is_current(reader, memory)
    write(writer, memory, subscribed(0, 1, b"a", edge=False))
    assert is_current(reader, memory)
    write(writer, memory, subscribed(0, 1, b"b"))
    assert not is_current(reader, memory)
    assert [record.pattern for record in read(reader, memory)] == [b"a", b"b"]
    assert is_current(reader, memory)


def test_a_worker_that_has_read_everything_need_not_read_its_own_records(
    memory: SharedMemory,
) -> None:
    writer, other = started(memory, 0), started(memory, 1)
    write(writer, memory, subscribed(0, 1, b"a"))
    assert is_current(writer, memory)
    assert read(writer, memory) == []
    write(other, memory, subscribed(1, 2, b"b"))
    write(writer, memory, subscribed(0, 1, b"c"))
    assert not is_current(writer, memory)
    assert [record.pattern for record in read(writer, memory)] == [b"b", b"c"]


def test_an_eighth_of_the_arena_is_reserved_for_removals(memory: SharedMemory) -> None:
    writer = started(memory, 0)
    assert fill(writer, memory) == 4096 // 64 * 7 // 8
    for count in range(4096 // 64 // 8):
        assert write(writer, memory, unsubscribed(0, count, bytes(64 - RECORD.size)))
    assert not write(writer, memory, unsubscribed(0, 0, b""))
    with memory.lock as words:
        statistics = SubscriptionTable(memory).statistics(words)
    assert (statistics.epoch, statistics.used_bytes, statistics.size_bytes) == (0, 4096, 4096)


def test_growth_by_an_eighth_of_the_arena_wakes_the_front_once(memory: SharedMemory) -> None:
    writer = started(memory, 0)
    for count in range(4096 // 8 // 64):
        assert not wants_compaction(memory)
        write(writer, memory, subscribed(0, count, bytes(64 - RECORD.size)))
    assert not was_woken(memory, FRONT)
    write(writer, memory, subscribed(0, 99, b""))
    assert wants_compaction(memory)
    assert was_woken(memory, FRONT)
    write(writer, memory, subscribed(0, 99, b"x"))
    assert not was_woken(memory, FRONT)


def test_an_arena_that_a_compaction_can_empty_is_not_full(memory: SharedMemory) -> None:
    writer = started(memory, 0)
    fill(writer, memory)
    with memory.lock as words:
        assert not writer.is_full(words, 64)


def test_the_other_arena_is_free_once_every_living_worker_has_left_it(memory: SharedMemory) -> None:
    tables = [started(memory, worker) for worker in range(2)]
    with memory.lock as words:
        assert all_have_read(memory, words)
        words[TABLE_EPOCH] += 1
        assert not all_have_read(memory, words)
    for table in tables:
        read(table, memory)
        with memory.lock as words:
            assert not all_have_read(memory, words)
            table.share_epoch(words)
    with memory.lock as words:
        assert all_have_read(memory, words)
        words[TABLE_EPOCH] += 1
        words[ALIVE] = 0
        assert all_have_read(memory, words), "the dead read nothing"


def test_a_process_follows_the_table_once_it_has_begun_to_read(memory: SharedMemory) -> None:
    writer, reader = started(memory, 0), started(memory, 1)
    write(writer, memory, subscribed(0, 1, b"a"))
    assert not follow(reader, memory)
    assert [record.pattern for record in read(reader, memory)] == [b"a"]
    assert not follow(reader, memory)
    write(writer, memory, subscribed(0, 1, b"b"))
    assert follow(reader, memory)
    assert [record.pattern for record in read(reader, memory)] == [b"b"]


def test_one_that_has_not_leaves_an_arena_without_reading_it(memory: SharedMemory) -> None:
    writer, reader = started(memory, 0), started(memory, 1)
    write(writer, memory, subscribed(0, 1, b"a"))
    with memory.lock as words:
        compaction = Compaction(memory, words)
    while compaction.step():
        pass
    with memory.lock as words:
        assert compaction.finish(words)
    assert not follow(reader, memory)
    with memory.lock as words:
        reader.share_epoch(words)
        assert words[WORKER_WORDS + WORDS_PER_WORKER + EPOCH_SEEN] == words[TABLE_EPOCH] == 1
    assert [record.pattern for record in read(reader, memory)] == [b"a"]


def read_changes(
    table: SubscriptionTable, memory: SharedMemory, records_max: int
) -> Iterator[list[Record]]:
    """What a worker applies, in the pieces in which it reads."""
    while True:
        with memory.lock as words:
            table.note_unread(words)
        yield list(table.read_changes(records_max))
        if not table.has_unread:
            return


def reset(worker: int) -> Record:
    return Record(WORKER_RESET, True, worker, 0)


def test_before_the_reset_of_a_worker_all_that_it_had_is_taken_back(memory: SharedMemory) -> None:
    writer, reader = started(memory), started(memory, 1)
    had = [
        subscribed(0, 7, b"a"),
        subscribed(0, 8, b"a", edge=False),
        subscribed(2, 9, b"a"),
        Record(RULE_ADDED, True, 0, 7, b"rule and a"),
    ]
    own = reset(1)
    assert write(writer, memory, *had, own, reset(0), subscribed(0, 10, b"b"))
    changes = list(chain.from_iterable(read_changes(reader, memory, 2)))
    assert changes == [
        *had,
        own,
        unsubscribed(0, 7, b"a"),
        unsubscribed(0, 8, b"a"),
        Record(RULE_REMOVED, True, 0, 7, b"rule and a"),
        reset(0),
        subscribed(0, 10, b"b"),
    ]
    assert is_current(reader, memory)


def test_what_a_reader_takes_back_is_read_in_pieces_and_once() -> None:
    """However often a worker dies."""
    deaths, patterns = 20, 50
    with open_memory(2, small_limits(table_bytes=1024 * 1024)) as memory:
        memory.lock.open()
        writer, reader = started(memory), started(memory, 1)
        for _ in range(deaths):
            for number in range(patterns):
                assert write(writer, memory, subscribed(0, 1, b"%d" % number))
            assert write(writer, memory, reset(0))
        pieces = list(read_changes(reader, memory, 10))
    assert max(map(len, pieces)) == 10
    assert len(pieces) <= 2 * deaths * (patterns // 10 + 1)
    changes = Counter(record.kind for piece in pieces for record in piece)
    assert changes == {
        SUBSCRIBED: deaths * patterns,
        UNSUBSCRIBED: deaths * patterns,
        WORKER_RESET: deaths,
    }


def test_a_reader_that_goes_back_is_not_current_until_it_has_returned(
    memory: SharedMemory,
) -> None:
    writer, reader = started(memory), started(memory, 1)
    assert write(writer, memory, *[subscribed(0, 1, b"%d" % number) for number in range(4)])
    read(reader, memory)
    assert write(writer, memory, reset(0))
    states = [is_current(reader, memory) for _ in read_changes(reader, memory, 2)]
    assert states == [False, False, True]


@pytest.mark.parametrize("length", [0, RECORD.size - 1])
def test_no_loop_goes_on_over_something_else_than_a_record(
    memory: SharedMemory, length: int
) -> None:
    writer, reader = started(memory), started(memory, 1)
    assert write(writer, memory, subscribed(0, 1, b"k"))
    RECORD.pack_into(memory.map, memory.arena_offsets[0], length, SUBSCRIBED, 1, 0, 1)
    with memory.lock as words:
        reader.note_unread(words)
    for records in (
        reader.read(),
        reader.read_own(0, RECORD.size + 1),
        read_records(memory, memory.arena_offsets[0], memory.arena_offsets[0] + 1),
    ):
        with pytest.raises(RuntimeError, match=f"a record of {length} bytes"):
            list(islice(records, 10))
