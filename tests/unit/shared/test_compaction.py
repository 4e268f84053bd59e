"""Compaction: whatever is journalled, read, begun and dropped meanwhile, nobody's view changes."""

from collections import Counter
from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbus.shared import compaction as compaction_module
from sbus.shared.compaction import Compaction
from sbus.shared.shared_memory import (
    ALIVE,
    COMPACTION_WANTED,
    TABLE_BASE,
    TABLE_TAIL,
    SharedMemory,
)
from sbus.shared.subscription_table import (
    CLIENT_GONE,
    RECORD,
    RULE_ADDED,
    RULE_REMOVED,
    WORKER_RESET,
    Record,
    SubscriptionTable,
    all_have_read,
)
from tests.unit.shared.journal_model import (
    Fold,
    Holding,
    Holds,
    folded,
    interest_of,
    read_all,
    read_on,
    subscribed,
    unsubscribed,
    write,
)
from tests.unit.shared.memories import open_memory, small_limits, was_woken

WORKERS = 3
PATTERNS = [b"", b"a", b"b/*", b"c" * 60]
FINISH_BYTES_MAX, COPY_BYTES = 100, 120
HOW = b"how "
"""What stands in front of a pattern that holds; the workers' own."""


def without(holding: Holding, worker: int) -> Holding:
    return Counter({key: count for key, count in holding.items() if key[0] != worker})


def hold(worker: int, client: int, data: bytes, *, kind: int = RULE_ADDED) -> Record:
    return Record(kind, True, worker, client, data)


class Journalling(RuleBasedStateMachine):
    """Writers that keep their edges right, readers anywhere, compactions at any instant."""

    @initialize()
    def begin(self) -> None:
        self.patches = [
            patch.object(compaction_module, "STEP_RECORDS", 3),
            patch.object(compaction_module, "FINISH_BYTES_MAX", FINISH_BYTES_MAX),
            patch.object(compaction_module, "COPY_BYTES", COPY_BYTES),
        ]
        for each in self.patches:
            each.start()
        self.memory = SharedMemory(WORKERS, small_limits(table_bytes=4096))
        self.memory.lock.open()
        self.holding: Holding = Counter()
        self.holds: Holds = set()
        """As the journal has them."""
        self.ends: Holds = set()
        """Holds whose end is still to be journalled: of clients that are gone."""
        self.tables = [SubscriptionTable(self.memory, worker) for worker in range(WORKERS)]
        self.folds = [Fold() for _ in range(WORKERS)]
        """What each worker knows of the others."""
        self.edge_unread = [False] * WORKERS
        self.compaction: Compaction | None = None
        self.at_snapshot: tuple[Holding, Holds, int] = (Counter(), set(), 0)
        with self.memory.lock as words:
            words[ALIVE] = (1 << WORKERS) - 1
            for table in self.tables:
                table.start(words)

    def teardown(self) -> None:
        try:
            for worker in range(WORKERS):
                self.read(worker, records_max=None)
        finally:
            self.memory.close()
            for each in self.patches:
                each.stop()

    # -- writing -------------------------------------------------------------------------------
    def write(
        self, worker: int, records: list[Record], after: Holding, holds: Holds | None = None
    ) -> bool:
        """Journal records, after which these hold; the same holds as before if none are given."""
        edge = any(record.edge for record in records)
        if write(self.tables[worker], self.memory, *records):
            self.holding = +after
            self.holds = self.holds if holds is None else holds
            if edge:
                for other in range(WORKERS):
                    self.edge_unread[other] |= other != worker
            return True
        return False

    @rule(
        worker=st.integers(0, WORKERS - 1),
        client=st.integers(1, 3),
        pattern=st.sampled_from(PATTERNS),
    )
    def subscribe(self, worker: int, client: int, pattern: bytes) -> None:
        edge = (worker, pattern) not in interest_of(self.holding)
        after = self.holding + Counter([(worker, client, pattern)])
        self.write(worker, [subscribed(worker, client, pattern, edge=edge)], after)

    @precondition(lambda self: self.holding)
    @rule(pick=st.integers(0, 1000))
    def unsubscribe(self, pick: int) -> None:
        held = sorted(self.holding)
        worker, client, pattern = held[pick % len(held)]
        after = self.holding - Counter([(worker, client, pattern)])
        edge = (worker, pattern) not in interest_of(after)
        records = [unsubscribed(worker, client, pattern, edge=edge)]
        ended = (worker, client, HOW + pattern)
        if ended in self.holds and not after[worker, client, pattern]:
            records.append(hold(*ended, kind=RULE_REMOVED))
            self.write(worker, records, after, self.holds - {ended})
        else:
            self.write(worker, records, after)

    @precondition(lambda self: self.holding)
    @rule(pick=st.integers(0, 1000))
    def hold_publishers(self, pick: int) -> None:
        """A client that has a pattern holds by it, if it does not yet."""
        held = sorted(self.holding)
        worker, client, pattern = held[pick % len(held)]
        added = (worker, client, HOW + pattern)
        if added not in self.holds:
            self.write(worker, [hold(*added)], self.holding, self.holds | {added})

    @precondition(lambda self: self.ends)
    @rule(pick=st.integers(0, 1000), first=st.booleans())
    def end_a_hold_of_a_client_that_is_gone(self, pick: int, first: bool) -> None:
        """Perhaps it had only begun when the client had gone already."""
        ended = sorted(self.ends)[pick % len(self.ends)]
        if first and ended not in self.holds:
            self.write(ended[0], [hold(*ended)], self.holding, self.holds | {ended})
        else:
            records = [hold(*ended, kind=RULE_REMOVED)]
            if self.write(ended[0], records, self.holding, self.holds - {ended}):
                self.ends.remove(ended)

    @precondition(lambda self: self.holding)
    @rule(pick=st.integers(0, 1000))
    def leave(self, pick: int) -> None:
        owners = sorted({key[:2] for key in self.holding})
        worker, client = owners[pick % len(owners)]
        after = Counter(
            {key: count for key, count in self.holding.items() if key[:2] != (worker, client)}
        )
        ended = interest_of(self.holding) - interest_of(after)
        records = [Record(CLIENT_GONE, False, worker, client)]
        records += [unsubscribed(worker, client, pattern) for _, pattern in sorted(ended)]
        held = {each for each in self.holds if each[:2] == (worker, client)}
        if self.write(worker, records, after, self.holds - held):
            self.ends |= held

    @rule(worker=st.integers(0, WORKERS - 1))
    def take_the_slot_over(self, worker: int) -> None:
        """A new worker starts where one died."""
        self.tables[worker] = SubscriptionTable(self.memory, worker)
        self.folds[worker] = Fold()
        self.edge_unread[worker] = bool(without(self.holding, worker))
        with self.memory.lock as words:
            self.tables[worker].start(words)
        reset = [Record(WORKER_RESET, True, worker, 0)]
        others = {held for held in self.holds if held[0] != worker}
        if self.write(worker, reset, without(self.holding, worker), others):
            self.ends = {held for held in self.ends if held[0] != worker}

    # -- reading -------------------------------------------------------------------------------
    @rule(worker=st.integers(0, WORKERS - 1), records_max=st.sampled_from([None, 1, 3]))
    def read(self, worker: int, records_max: int | None) -> None:
        for record in read_on(self.tables[worker], self.memory, records_max):
            if record.worker != worker:
                self.folds[worker].apply(record)
        with self.memory.lock as words:
            assert self.tables[worker].is_current(words)
        assert self.folds[worker].holding == without(self.holding, worker)
        assert self.folds[worker].edges == interest_of(without(self.holding, worker))
        assert self.folds[worker].holds == {held for held in self.holds if held[0] != worker}
        self.edge_unread[worker] = False

    @rule(worker=st.integers(0, WORKERS - 1))
    def share_epoch(self, worker: int) -> None:
        with self.memory.lock as words:
            self.tables[worker].share_epoch(words)

    # -- compacting ----------------------------------------------------------------------------
    @rule()
    def begin_compaction(self) -> None:
        """Also drops the one under way."""
        with self.memory.lock as words:
            if all_have_read(self.memory, words):
                self.compaction = Compaction(self.memory, words)
                self.at_snapshot = (self.holding.copy(), self.holds, words[TABLE_TAIL])

    @precondition(lambda self: self.compaction is not None)
    @rule(to_its_end=st.booleans())
    def compact(self, to_its_end: bool) -> None:
        assert self.compaction is not None
        while self.compaction.step() and to_its_end:
            pass

    @precondition(lambda self: self.compaction is not None)
    @rule()
    def finish_compaction(self) -> None:
        compaction = self.compaction
        assert compaction is not None
        while compaction.step():
            pass
        holding, holds, tail_then = self.at_snapshot
        copied = 0
        with self.memory.lock as words:
            before = words[TABLE_TAIL]
            copied = before - tail_then
            finished = compaction.finish(words)
        if not finished:
            assert copied > FINISH_BYTES_MAX
            pieces = 1
            while compaction.copy_journal(before):
                pieces += 1
            assert pieces == -(-copied // COPY_BYTES)
            with self.memory.lock as words:
                assert compaction.finish(words)
        self.compaction = None
        with self.memory.lock as words:
            base, tail = words[TABLE_BASE], words[TABLE_TAIL]
        assert base == tail <= before
        image = sum(
            count * (RECORD.size + len(pattern)) for (_, _, pattern), count in holding.items()
        )
        image += sum(RECORD.size + len(data) for _, _, data in holds)
        assert tail == image + copied, "one record for all that holds, and what came since"

    @invariant()
    def a_newcomer_learns_what_holds(self) -> None:
        fold = folded(read_all(self.memory))
        assert fold.holding == self.holding
        assert fold.edges == interest_of(self.holding)
        assert fold.holds == self.holds

    @invariant()
    def a_worker_that_missed_an_edge_knows_it(self) -> None:
        with self.memory.lock as words:
            for worker in range(WORKERS):
                if self.edge_unread[worker]:
                    assert not self.tables[worker].is_current(words)


TestJournalling = Journalling.TestCase
TestJournalling.settings = settings(
    max_examples=4 * settings().max_examples // 5, stateful_step_count=50
)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(1, small_limits(table_bytes=4096)) as opened:
        opened.lock.open()
        yield opened


def started(memory: SharedMemory) -> SubscriptionTable:
    table = SubscriptionTable(memory, 0)
    with memory.lock as words:
        table.start(words)
        words[ALIVE] = 1
    return table


def compact(
    memory: SharedMemory, reader: SubscriptionTable, meanwhile: Callable[[], None] = lambda: None
) -> None:
    with memory.lock as words:
        assert all_have_read(memory, words)
        compaction = Compaction(memory, words)
    while compaction.step():
        pass
    meanwhile()
    with memory.lock as words:
        assert compaction.finish(words)
    list(read_on(reader, memory))
    with memory.lock as words:
        reader.share_epoch(words)


def wants_compaction(memory: SharedMemory) -> bool:
    with memory.lock as words:
        return bool(words[COMPACTION_WANTED])


def test_a_finished_compaction_is_not_wanted_again(memory: SharedMemory) -> None:
    table = started(memory)
    client = 0
    while not wants_compaction(memory):
        client += 1
        write(table, memory, subscribed(0, client, b"a"), unsubscribed(0, client, b"a"))
    was_woken(memory, 1)

    def meanwhile() -> None:
        write(table, memory, subscribed(0, 99, b"z"))

    compact(memory, table, meanwhile)
    assert read_all(memory) == [subscribed(0, 99, b"z")]
    assert not wants_compaction(memory)


@pytest.mark.parametrize("live_part", [0.1, 0.3, 0.45, 0.55, 0.7, 0.8])
def test_a_full_arena_asks_for_compaction(memory: SharedMemory, live_part: float) -> None:
    table = started(memory)
    client = 0
    while client * 64 < live_part * memory.arena_bytes:
        client += 1
        write(table, memory, subscribed(0, client, bytes(64 - RECORD.size), edge=client == 1))
    compact(memory, table)
    while write(table, memory, subscribed(0, 0, b"a"), unsubscribed(0, 0, b"a")):
        pass
    assert wants_compaction(memory)
    compact(memory, table)
    assert write(table, memory, subscribed(0, 0, b"a"))
