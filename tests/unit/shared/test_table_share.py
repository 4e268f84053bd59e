"""How users share the room in the subscription table until it is compacted."""

from collections.abc import Iterator

import pytest

from sbus.shared.compaction import Compaction
from sbus.shared.shared_memory import COMPACTION_WANTED, TABLE_BASE, WORD_BYTES, SharedMemory
from sbus.shared.subscription_table import (
    RECORD,
    UNSUBSCRIBED,
    Record,
    SubscriptionTable,
    encode_record,
)
from sbus.shared.table_share import TABLE_SHARE_WORDS, TableShare
from tests.unit.shared.journal_model import subscribed, unsubscribed
from tests.unit.shared.memories import open_memory, was_woken

FRONT = 1
PATTERN = bytes(64 - RECORD.size)
MORE = subscribed(0, 1, PATTERN, edge=False)
LESS = unsubscribed(0, 1, PATTERN, edge=False)
ROOM = 4096 * 7 // 8 // 64
"""For these records, without the reserve."""
RESERVE = 4096 // 8 // 64


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(1) as opened:
        opened.lock.open()
        yield opened


@pytest.fixture
def table(memory: SharedMemory) -> SubscriptionTable:
    table = SubscriptionTable(memory)
    with memory.lock as words:
        table.start(words)
    return table


def new_share() -> TableShare:
    return TableShare(memoryview(bytearray(WORD_BYTES * TABLE_SHARE_WORDS)).cast("Q"))


def append(
    memory: SharedMemory, table: SubscriptionTable, record: Record, share: TableShare | None
) -> bool:
    with memory.lock as words:
        frees = record.kind == UNSUBSCRIBED
        return table.append(words, encode_record(record), share, edge=record.edge, frees=frees)


def take(
    memory: SharedMemory, table: SubscriptionTable, share: TableShare | None, record: Record = MORE
) -> int:
    """Append a record as often as there is room; returns how often that was."""
    count = 0
    while append(memory, table, record, share):
        count += 1
    return count


def compact(memory: SharedMemory) -> None:
    with memory.lock as words:
        compaction = Compaction(memory, words)
    while compaction.step():
        pass
    with memory.lock as words:
        assert compaction.finish(words)


def test_a_user_takes_at_most_as_much_as_it_leaves_to_others(
    memory: SharedMemory, table: SubscriptionTable
) -> None:
    shares = [new_share() for _ in range(4)]
    assert [take(memory, table, share) for share in shares] == [28, 14, 7, 4]
    assert [take(memory, table, share) for share in shares] == [0, 0, 0, 0]
    assert take(memory, table, None) == ROOM - 28 - 14 - 7 - 4


def test_the_first_request_after_a_compaction_needs_only_room(
    memory: SharedMemory, table: SubscriptionTable
) -> None:
    for _ in range(ROOM - 1):
        assert append(memory, table, MORE, None)
    assert take(memory, table, new_share()) == 1


def test_a_compaction_makes_room_for_those_that_took_much(
    memory: SharedMemory, table: SubscriptionTable
) -> None:
    share = new_share()
    assert take(memory, table, share) == 28
    for _ in range(14):
        assert append(memory, table, LESS, None)
    compact(memory)
    assert take(memory, table, share) == (ROOM - 14) // 2


def test_the_reserve_is_shared_as_well(memory: SharedMemory, table: SubscriptionTable) -> None:
    assert take(memory, table, None) == ROOM
    assert take(memory, table, new_share(), LESS) == RESERVE // 2
    assert take(memory, table, None, LESS) == RESERVE - RESERVE // 2


def test_who_has_used_its_share_has_the_front_compact_the_table(
    memory: SharedMemory, table: SubscriptionTable
) -> None:
    """Also one that has not grown much since the last compaction."""
    share = new_share()
    take(memory, table, share)
    with memory.lock as words:
        words[TABLE_BASE] = 4096
        words[COMPACTION_WANTED] = 0
    assert was_woken(memory, FRONT)
    assert not append(memory, table, MORE, share)
    assert was_woken(memory, FRONT)
    with memory.lock as words:
        assert words[COMPACTION_WANTED]
