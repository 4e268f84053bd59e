"""The ordered log against a list: every worker gets what is destined to it, once, in order."""

from collections.abc import Iterator
from contextlib import suppress
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbus.errors import ConfigurationError
from sbus.limits import Limits
from sbus.shared import ordered_log
from sbus.shared.log_block import BLOCK, ENTRY_BYTES, WalkedBlock, check_log_size
from sbus.shared.log_share import WORDS_PER_DESTINATION, LogShare
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import (
    LOG_HEAD,
    LOG_WAITERS,
    WORDS_PER_WORKER,
    WORKER_WORDS,
    WORKERS_MAX,
    SharedMemory,
)
from tests.unit.shared.memories import (
    log_block_of,
    open_memory,
    small_limits,
)

WORKERS = 3
ACCOUNT = 3
LOG_BYTES = 2048
PIECE_BYTES_MAX = LOG_BYTES // 4
BLOCK_BYTES_MAX = LOG_BYTES // 8
"""So that a block and the skip before it take at most a quarter, as `check_log_size` demands."""


def message(key: bytes, payload: bytes = b"") -> tuple[bytes, int]:
    packet = b"MSG %b\0%b" % (key, payload)
    return packet, len(key)


def entries_of(log: OrderedLog, end: int) -> Iterator[tuple[int, bytes, bytes]]:
    """(account, key, packet) of what is destined to `log` up to `end`, one by one."""
    return flattened(log.walk(end))


def flattened(blocks: Iterator[WalkedBlock]) -> Iterator[tuple[int, bytes, bytes]]:
    for block in blocks:
        for key, packet, _ in block.entries:
            yield block.publisher.account_place, key, packet


def walk(log: OrderedLog, memory: SharedMemory) -> list[tuple[bytes, bytes]]:
    """Walk all: at once when it is little, as a worker does, else from the log."""
    with memory.lock as words:
        end = log.destined_end(words)
        piece = log.take_piece(words, end)
    got = list(flattened(log.walk_piece(piece)))
    got += entries_of(log, end)
    assert all(account == ACCOUNT for account, _, _ in got)
    with memory.lock as words:
        log.share_cursor(words)
        log.check_invariants(words)
    return [(key, packet) for _, key, packet in got]


def some_share() -> LogShare:
    """The share of a user who has not appended anything yet."""
    return LogShare(memoryview(bytearray(8 * WORDS_PER_DESTINATION * WORKERS_MAX)).cast("Q"))


def started(memory: SharedMemory, *workers: int) -> list[OrderedLog]:
    logs = [OrderedLog(memory, worker) for worker in workers]
    with memory.lock as words:
        for log in logs:
            log.start(words)
    return logs


def append(
    log: OrderedLog,
    memory: SharedMemory,
    *entries: tuple[int, bytes],
    size: int = 0,
    share: LogShare | None = None,
) -> int:
    """Append a block of (mask, key) entries, each with a payload of `size` bytes; without a share
    given, for a user who has not appended anything yet."""
    laid_out = [(mask, *message(key, bytes(size))) for mask, key in entries]
    with memory.lock as words:
        wake = log.append(words, log_block_of(7, ACCOUNT, laid_out), share or some_share())
        log.check_invariants(words)
    return wake


class Walking(RuleBasedStateMachine):
    """Any interleaving of appending, walking, sharing, sleeping, dying and starting again."""

    @initialize()
    def begin(self) -> None:
        self.small_windows = patch.multiple(
            ordered_log, WINDOW_BYTES_MIN=64, FIRST_WINDOW_BYTES=256
        )
        self.small_windows.start()
        self.small_pieces = patch.object(ordered_log, "_PIECE_BYTES_MAX", PIECE_BYTES_MAX)
        self.small_pieces.start()
        self.memory = SharedMemory(WORKERS, small_limits(LOG_BYTES))
        self.memory.lock.open()
        self.logs = started(self.memory, *range(WORKERS))
        self.alive = 0b111
        self.sleeping = 0
        self.waiting = 0
        self.waiting_for: list[int] = [0] * WORKERS
        """Who waits for each worker to come closer."""
        self.behind = [False] * WORKERS
        """Whether each worker has more to walk, as far as it has shared."""
        self.number = 0
        self.user_share = some_share()
        self.due: list[list[tuple[int, bytes, bytes]]] = [[] for _ in range(WORKERS)]
        self.walks: dict[int, tuple[Iterator[tuple[int, bytes, bytes]], int]] = {}
        """Walks under way, each with how many entries were due when its hold was."""

    def teardown(self) -> None:
        try:
            self.come_to_rest()
        finally:
            self.memory.close()
            self.small_windows.stop()
            self.small_pieces.stop()

    def come_to_rest(self) -> None:
        """Once everybody has walked and shared, nothing is used and nobody waits."""
        for worker in range(WORKERS):
            if self.alive >> worker & 1:
                self.finish_walk(worker)
                self.begin_walk(worker)
                self.finish_walk(worker)
        for worker in range(WORKERS):
            if self.alive >> worker & 1:
                self.share_cursor(worker)
                assert not self.due[worker]
        with self.memory.lock as words:
            statistics = self.logs[0].statistics(words)
        assert statistics.used_bytes == 0
        assert statistics.waiting == 0
        assert self.waiting_for == [0] * WORKERS, "somebody was never woken"

    def living(self, pick: int) -> int | None:
        living = [worker for worker in range(WORKERS) if self.alive >> worker & 1]
        return living[pick % len(living)] if living else None

    def release(self, woken: int, worker: int) -> None:
        """All who waited for room are woken together, and all who waited for `worker`."""
        with self.memory.lock as words:
            waiting = self.logs[0].statistics(words).waiting
            waiting_for = words[WORKER_WORDS + worker * WORDS_PER_WORKER + LOG_WAITERS]
        expected = 0
        if self.waiting and not waiting:
            expected, self.waiting = self.waiting, 0
        if self.waiting_for[worker] and not waiting_for:
            expected |= self.waiting_for[worker]
            self.waiting_for[worker] = 0
        assert woken == expected
        self.behind[worker] = bool(self.due[worker]) or worker in self.walks
        if not self.behind[worker]:
            assert not self.waiting_for[worker], "nobody waits for a worker that is not late"

    @rule(
        pick=st.integers(0, 5),
        entries=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 20)), min_size=1, max_size=4),
    )
    def append(self, pick: int, entries: list[tuple[int, int]]) -> None:
        worker = self.living(pick)
        if worker is None:
            return
        self.number += 1
        laid_out = [
            (mask, *message(b"%d/%d" % (self.number, at), b"x" * size))
            for at, (mask, size) in enumerate(entries)
        ]
        block = log_block_of(self.number, self.number % 3, laid_out)
        assert len(block.data) <= BLOCK_BYTES_MAX
        with self.memory.lock as words:
            used = self.logs[worker].statistics(words).used_bytes
            wake = self.logs[worker].append(words, block, self.user_share)
            full = self.logs[worker].statistics(words).waiting >> worker & 1
        destined = block.mask & self.alive
        if wake < 0:
            if full:
                assert self.waiting or used + 2 * BLOCK_BYTES_MAX > LOG_BYTES
                self.waiting |= 1 << worker
                return
            with self.memory.lock as words:
                waiters = [
                    words[WORKER_WORDS + other * WORDS_PER_WORKER + LOG_WAITERS]
                    for other in range(WORKERS)
                ]
            late = [other for other in range(WORKERS) if waiters[other] >> worker & 1]
            assert any(destined >> other & 1 and self.behind[other] for other in late)
            for other in late:
                self.waiting_for[other] |= 1 << worker
            assert waiters == self.waiting_for
            return
        assert not self.waiting
        for other in range(WORKERS):
            assert not (destined >> other & 1 and self.waiting_for[other]), "overtaken"
        assert wake == destined & self.sleeping
        self.sleeping &= ~wake
        for mask, packet, key_bytes in laid_out:
            for other in range(WORKERS):
                if mask & self.alive & 1 << other:
                    self.due[other].append((self.number % 3, packet[4 : 4 + key_bytes], packet))
                    self.behind[other] = True

    @rule(pick=st.integers(0, 5))
    def start_walking(self, pick: int) -> None:
        worker = self.living(pick)
        if worker is not None and worker not in self.walks:
            self.begin_walk(worker)

    def begin_walk(self, worker: int) -> None:
        with self.memory.lock as words:
            end = self.logs[worker].destined_end(words)
        self.walks[worker] = (entries_of(self.logs[worker], end), len(self.due[worker]))

    @rule(pick=st.integers(0, 5), steps=st.integers(1, 4))
    def go_on_walking(self, pick: int, steps: int) -> None:
        worker = self.living(pick)
        for _ in range(steps):
            if worker in self.walks:
                self.step(worker)

    def step(self, worker: int) -> None:
        entries, due = self.walks[worker]
        entry = next(entries, None)
        if entry is None:
            assert due == 0, "a walk ended before everything of its instant"
            del self.walks[worker]
        else:
            assert due > 0, "a walk went beyond its instant"
            assert entry == self.due[worker].pop(0)
            self.walks[worker] = (entries, due - 1)

    def finish_walk(self, worker: int) -> None:
        while worker in self.walks:
            self.step(worker)

    @rule(pick=st.integers(0, 5))
    def walk_piece(self, pick: int) -> None:
        """A small rest is copied and shared as walked in the hold in which its end is read."""
        worker = self.living(pick)
        if worker is None or worker in self.walks:
            return
        log = self.logs[worker]
        with self.memory.lock as words:
            end = log.destined_end(words)
            is_small = 0 < end - log.cursor <= PIECE_BYTES_MAX
            piece = log.take_piece(words, end)
            woken = log.share_cursor(words)
        assert bool(piece) == is_small
        if piece:
            assert list(flattened(log.walk_piece(piece))) == self.due[worker]
            self.due[worker].clear()
        self.release(woken, worker)

    @rule(pick=st.integers(0, 5))
    def share(self, pick: int) -> None:
        worker = self.living(pick)
        if worker is not None:
            self.share_cursor(worker)

    def share_cursor(self, worker: int) -> None:
        with self.memory.lock as words:
            woken = self.logs[worker].share_cursor(words)
        self.release(woken, worker)

    @rule(pick=st.integers(0, 5), walked_bytes=st.sampled_from([32, 256, 2048]))
    def learn_its_pace(self, pick: int, walked_bytes: int) -> None:
        worker = self.living(pick)
        if worker is not None:
            self.logs[worker].note_pace(walked_bytes, ordered_log.WINDOW_SECONDS)

    @rule(pick=st.integers(0, 5))
    def sleep(self, pick: int) -> None:
        worker = self.living(pick)
        if worker is None or worker in self.walks:
            return
        with self.memory.lock as words:
            self.logs[worker].ask_to_be_woken(words)
        asleep = self.logs[worker].is_caught_up
        assert asleep == (not self.due[worker])
        self.sleeping |= asleep << worker

    @rule(worker=st.integers(0, WORKERS - 1))
    def die(self, worker: int) -> None:
        self.walks.pop(worker, None)
        self.behind[worker] = False
        keep = ~(1 << worker)
        self.due[worker].clear()
        self.alive &= keep
        self.sleeping &= keep
        self.waiting &= keep
        self.waiting_for = [waiters & keep for waiters in self.waiting_for]
        with self.memory.lock as words:
            woken = OrderedLog(self.memory).reap(words, worker)
        self.release(woken, worker)

    @precondition(lambda self: self.alive != 0b111)
    @rule(pick=st.integers(0, 5))
    def start_again(self, pick: int) -> None:
        dead = [worker for worker in range(WORKERS) if not self.alive >> worker & 1]
        worker = dead[pick % len(dead)]
        self.logs[worker] = started(self.memory, worker)[0]
        self.alive |= 1 << worker

    @invariant()
    def formulas_hold(self) -> None:
        with self.memory.lock as words:
            self.logs[0].check_invariants(words)
            assert self.logs[0].statistics(words).waiting == self.waiting


TestWalking = Walking.TestCase
TestWalking.settings = settings(stateful_step_count=60)


def test_entries_are_numbered_by_their_place_in_the_block() -> None:
    with open_memory(3) as memory:
        memory.lock.open()
        logs = started(memory, 0, 1, 2)
        append(logs[0], memory, (0b100, b"a"), (0b010, b"b"), (0b110, b"c"))
        append(logs[0], memory, (0b010, b"d"))
        with memory.lock as words:
            end = logs[1].destined_end(words)
        numbers = [(log.cursor, log.entry_numbers()) for log in logs[1:2] for _ in log.walk(end)]
        assert [found for _, found in numbers] == [[1, 2], [0]]
        with memory.lock as words:
            end = logs[2].destined_end(words)
        assert [logs[2].entry_numbers() for _ in logs[2].walk(end)] == [[0, 2]]
        assert numbers[0][0] == 0
        assert 0 < numbers[1][0] < words_head(memory)


def words_head(memory: SharedMemory) -> int:
    with memory.lock as words:
        return int(words[LOG_HEAD])


def test_a_full_log_accepts_nothing_until_a_quarter_is_free() -> None:
    with open_memory(2) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        reader.note_pace(LOG_BYTES, ordered_log.WINDOW_SECONDS)
        with memory.lock as words:
            reader.share_cursor(words)
        taken = 0
        while append(writer, memory, (0b10, b"k"), size=40) >= 0:  # 128 bytes each
            taken += 1
        assert taken == LOG_BYTES // 128
        assert append(reader, memory, (0b01, b"k")) == -1, "nobody overtakes who waits"
        with memory.lock as words:
            end = reader.destined_end(words)
        released = []
        for _ in reader.walk(end):
            with memory.lock as words:
                released.append(reader.share_cursor(words))
        # The share after entry n frees the n - 1 blocks before it.
        assert released == [0] * 4 + [0b11] + [0] * (taken - 5)
        assert append(writer, memory, (0b10, b"k"), size=72) >= 0


@pytest.mark.parametrize(
    ("match_steps", "entries_max"), [(0, 1_500), (250, 250), (2_000, 36), (32_768, 2)]
)
def test_a_window_has_no_more_entries_than_can_be_walked_without_cached_routes(
    match_steps: int, entries_max: int
) -> None:
    """However fast the worker walked what was ordinary: 75,000 steps, 50 and those of the match
    for each entry."""
    with open_memory(2, small_limits(4 * 1024 * 1024)) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        reader.note_pace(10_000_000, ordered_log.WINDOW_SECONDS)
        reader.set_entry_steps(50 + match_steps)
        with memory.lock as words:
            reader.share_cursor(words)
        share = some_share()
        taken = 0
        while append(writer, memory, (0b10, b"k"), (0b01, b"k"), share=share) >= 0:
            walk(writer, memory)
            taken += 2
        assert taken == pytest.approx(entries_max, rel=0.02, abs=3)
        assert append(writer, memory, (0b10, b"k")) == 0, "another user put nothing there yet"
        with memory.lock as words:
            end = reader.destined_end(words)
        walked_when_released = 0
        for walked_blocks, _ in enumerate(reader.walk(end)):
            with memory.lock as words:
                if reader.share_cursor(words):
                    walked_when_released = 2 * walked_blocks
        assert walked_when_released == pytest.approx(taken / 2, rel=0.02, abs=3)


@pytest.mark.parametrize(
    ("entries", "size", "parts"), [(1, 10, 1), (2, 3_000, 2), (2, 10, 1), (36, 10, 2), (64, 10, 4)]
)
def test_a_log_block_is_divided_by_bytes_and_by_entries(
    entries: int, size: int, parts: int
) -> None:
    """Half a window is 4,096 bytes, or 18 entries of 2,050 steps."""
    with open_memory(2, small_limits(64 * 1024)) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        reader.note_pace(8_192, ordered_log.WINDOW_SECONDS)
        reader.set_entry_steps(2_050)
        laid_out = [(0b10, *message(b"k", bytes(size)))] * entries
        block = log_block_of(1, ACCOUNT, laid_out)
        with memory.lock as words:
            reader.share_cursor(words)
            assert writer.parts_of(words, block) == parts
            reader.reap(words, 1)
            assert writer.parts_of(words, block) == 1, "nobody is there to walk over it"


def test_no_worker_appends_for_one_that_lags_by_more_than_its_window() -> None:
    with open_memory(3, small_limits(64 * 1024)) as memory:
        memory.lock.open()
        writer, slow, _ = started(memory, 0, 1, 2)
        slow.note_pace(8192, ordered_log.WINDOW_SECONDS)
        with memory.lock as words:
            slow.share_cursor(words)
        taken = 0
        share = some_share()
        while append(writer, memory, (0b010, b"k"), size=40, share=share) >= 0:  # 128 bytes each
            taken += 1
        assert taken == 8192 // 128 + 1
        assert append(writer, memory, (0b100, b"k")) == 0, "others are not concerned"
        assert append(writer, memory, (0b110, b"k"), share=share) == -1
        assert append(writer, memory, (0b110, b"k")) == 0, "another user put nothing there yet"
        with memory.lock as words:
            end = slow.destined_end(words)
        released = []
        for _ in slow.walk(end):
            with memory.lock as words:
                released.append(slow.share_cursor(words))
        # They are woken once half of the window is free.
        first = released.index(0b001)
        assert released.count(0b001) == 1
        assert first == taken + 2 - 8192 // 128 // 2
        assert append(writer, memory, (0b010, b"k")) >= 0


def test_a_successor_counts_only_what_came_for_it_since() -> None:
    """Its predecessor had walked everything, and others have used that room of the log since."""
    with open_memory(2) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        append(writer, memory, (0b10, b"before"))
        assert [key for key, _ in walk(reader, memory)] == [b"before"]
        with memory.lock as words:
            reader.reap(words, 1, reader.cursor)
        for _ in range(LOG_BYTES // 128 + 1):
            append(writer, memory, (0b01, b"other"), size=72)
            walk(writer, memory)
        append(writer, memory, (0b10, b"behind"))
        successor = OrderedLog(memory, 1)
        with memory.lock as words:
            assert successor.resume(words, reader.cursor)
        assert [key for key, _ in walk(successor, memory)] == [b"behind"]


@pytest.mark.parametrize("expected", [[], [b"behind"]])
def test_a_successor_of_a_worker_that_had_little_to_walk_misses_nothing(
    expected: list[bytes],
) -> None:
    """Others have used the whole log before the death."""
    with open_memory(2) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        append(writer, memory, (0b10, b"before"))
        walk(reader, memory)
        for _ in range(LOG_BYTES // 128 + 1):
            append(writer, memory, (0b01, b"other"), size=72)
            walk(writer, memory)
        for key in expected:
            append(writer, memory, (0b10, key))
        successor = OrderedLog(memory, 1)
        with memory.lock as words:
            reader.reap(words, 1, reader.cursor)
            assert successor.resume(words, reader.cursor)
        assert [key for key, _ in walk(successor, memory)] == expected


@pytest.mark.parametrize("others", range(LOG_BYTES // 128 + 3))
def test_a_successor_never_walks_over_other_bytes_than_were_destined_to_it(others: int) -> None:
    """The worker has died with a copy of its block. Others have appended so many since, and one of
    them has died as it wrote the next block."""
    with open_memory(2) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        append(writer, memory, (0b10, b"copied"), size=30)
        with memory.lock as words:
            reader.take_piece(words, reader.destined_end(words))
            reader.share_cursor(words)
        for _ in range(others):
            append(writer, memory, (0b01, b"other"), size=30)
            walk(writer, memory)
        with suppress(InterruptedError), memory.lock as words:
            block = log_block_of(7, ACCOUNT, [(0b11, *message(b"never", bytes(30)))])
            assert writer.append(words, block, some_share()) == 0
            raise InterruptedError
        successor = OrderedLog(memory, 1)
        with memory.lock as words:
            writer.reap(words, 1, 0)
            writer.check_invariants(words)
            is_kept = successor.resume(words, 0)
        if is_kept:
            assert [key for key, _ in walk(successor, memory)] == [b"copied"]
        assert is_kept == (others < LOG_BYTES // 128 * 3 // 4)


def test_a_kept_block_takes_room_however_much_there_was_before() -> None:
    with open_memory(2) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        for _ in range(LOG_BYTES // 128 - 2):
            append(writer, memory, (0b01, b"other"), size=30)
            walk(writer, memory)
        append(writer, memory, (0b10, b"copied"), size=30)
        with memory.lock as words:
            walked = reader.destined_end(words) - 128
            reader.take_piece(words, walked + 128)
            reader.share_cursor(words)
        for _ in range(4):
            append(writer, memory, (0b01, b"other"), size=30)
            walk(writer, memory)
        with memory.lock as words:
            reader.reap(words, 1, walked)
        appended = 4
        while append(writer, memory, (0b01, b"other"), size=30) >= 0:
            walk(writer, memory)
            appended += 1
        assert appended == LOG_BYTES // 128 - 1
        successor = OrderedLog(memory, 1)
        with memory.lock as words:
            assert successor.resume(words, walked)
        assert [key for key, _ in walk(successor, memory)] == [b"copied"]


def test_a_successor_refuses_what_the_log_cannot_have_any_more() -> None:
    with open_memory(2) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        append(writer, memory, (0b10, b"k"))
        with memory.lock as words:
            reader.reap(words, 1, 0)
            words[LOG_HEAD] += LOG_BYTES
            assert not OrderedLog(memory, 1).resume(words, 0)


@pytest.mark.parametrize("length", [0, BLOCK.size - 1, BLOCK.size + ENTRY_BYTES - 1])
def test_no_loop_goes_on_over_what_is_no_log_block(length: int) -> None:
    """The header says that it has one log entry."""
    with open_memory(2) as memory:
        memory.lock.open()
        writer, reader = started(memory, 0, 1)
        append(writer, memory, (0b10, b"k"))
        BLOCK.pack_into(memory.map, memory.log_offset, 0b10, length, 1, 7, *[0] * 7)
        with memory.lock as words:
            end = reader.destined_end(words)
        piece = memory.map[memory.log_offset : memory.log_offset + end]
        for walk_over in (
            lambda: list(reader.walk(end)),
            lambda: list(reader.walk_piece(piece)),
            lambda: reader.look_ahead(end),
        ):
            with pytest.raises(RuntimeError, match=f"a block of {length} bytes with 1 entries"):
                walk_over()


def test_a_process_that_does_not_walk_sees_the_same_statistics() -> None:
    with open_memory(1) as memory:
        memory.lock.open()
        (log,) = started(memory, 0)
        append(log, memory, (1, b"k"))
        with memory.lock as words:
            statistics = OrderedLog(memory).statistics(words)
        assert (statistics.head, statistics.used_bytes, statistics.size_bytes) == (128, 128, 2048)


def test_a_quarter_of_the_log_must_take_the_largest_block_and_a_skip() -> None:
    largest = 512 + 1024 + 32 * (4 + 2)  # a batch, the packet that ends it, headers, padding
    for log_bytes, accepted in ((16_384, True), (12_288, False), (16_384 + 32, False)):
        limits = Limits(
            batch_packets_max=4, batch_bytes_max=512, packet_bytes_max=1024, log_bytes=log_bytes
        )
        assert accepted == (log_bytes >= 8 * largest and log_bytes % 4096 == 0)
        if accepted:
            check_log_size(limits)
        else:
            with pytest.raises(ConfigurationError, match="at least 16384"):
                check_log_size(limits)


def test_a_block_is_appended_only_behind_what_was_walked() -> None:
    """Nothing that is destined to the worker comes between what it walked and the block."""
    with open_memory(WORKERS, small_limits()) as memory:
        memory.lock.open()
        first, second = started(memory, 0, 1)
        block = log_block_of(1, ACCOUNT, [(0b10, *message(b"handed over"))])

        def append_if_walked() -> int:
            with memory.lock as words:
                return first.append_if_walked(words, block, some_share())

        assert append_if_walked() >= 0
        assert walk(second, memory) == [(b"handed over", b"MSG handed over\0")]
        append(second, memory, (0b01, b"k"))
        assert append_if_walked() == -1
        walk(first, memory)
        append(second, memory, (0b100, b"for neither"))
        assert append_if_walked() >= 0
        with memory.lock as words:
            second.reap(words, 1)
        assert append_if_walked() == -1, "nobody is there to walk over it"
