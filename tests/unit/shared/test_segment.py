"""The shared memory and its lock: all of a hold's changes count, or none."""

import os
import threading
import time
from contextlib import AbstractContextManager

import pytest

from sbus.shared.segment import (
    LOG_HEAD,
    PAGE_BYTES,
    TABLE_TAIL,
    WORDS_PER_WORKER,
    WORKER_WORDS,
    WORKERS_MAX,
    Segment,
)
from tests.unit.shared.segments import (
    child_holding_the_lock,
    close_segment,
    kill_and_reap,
    open_segment,
    small_limits,
    was_woken,
)

SOON_SECONDS = 5.0


def change_and_fail(hold: AbstractContextManager[memoryview]) -> None:
    with hold as words:
        words[LOG_HEAD] = 99
        raise LookupError


def test_what_one_hold_changes_the_next_one_sees() -> None:
    with open_segment(2) as segment:
        segment.open_lock()
        for value in range(5):
            with segment as words:
                assert words[LOG_HEAD] == value
                words[LOG_HEAD] = value + 1
                words[WORKER_WORDS + 2 * WORDS_PER_WORKER - 1] = value
        with segment as words:
            assert words[WORKER_WORDS + 2 * WORDS_PER_WORKER - 1] == 4


def test_an_error_in_a_hold_leaves_everything_as_it_was() -> None:
    with open_segment(1) as segment:
        segment.open_lock()
        with segment as words:
            words[LOG_HEAD] = 1
        with pytest.raises(LookupError):
            change_and_fail(segment)
        with segment as words:
            assert words[LOG_HEAD] == 1


def test_every_word_has_its_own_place() -> None:
    with open_segment(WORKERS_MAX) as segment:
        segment.open_lock()
        size = WORKER_WORDS + WORDS_PER_WORKER * WORKERS_MAX
        with segment as words:
            assert len(words) == size
            for place in range(size):
                words[place] = place + 1
        with segment as words:
            assert words.tolist() == list(range(1, size + 1))
        ring = segment.map[segment.log_offset :]
        assert not any(ring), "control words reach into the log"
        segment.beat(WORKERS_MAX - 1)
        with segment as words:
            assert words.tolist() == list(range(1, size + 1))
        assert segment.map[segment.log_offset :] == ring


def test_the_parts_follow_each_other_without_overlap() -> None:
    with open_segment(3, small_limits(log_bytes=8192, table_bytes=4096)) as segment:
        first, second = segment.arena_offsets
        assert segment.log_offset % PAGE_BYTES == 0
        assert first - segment.log_offset == 8192
        assert second - first == 4096
        assert os.fstat(segment.fd).st_size == second + 4096


@pytest.mark.parametrize("workers", [0, WORKERS_MAX + 1])
def test_a_bus_has_1_to_64_workers(workers: int) -> None:
    with pytest.raises(ValueError, match=str(workers)):
        Segment(workers, small_limits())


def test_a_holder_that_is_killed_has_changed_nothing() -> None:
    def act(words: memoryview) -> None:
        words[LOG_HEAD] = 77
        words[TABLE_TAIL] = 78

    with open_segment(3) as segment:
        with child_holding_the_lock(segment, act) as child:
            segment.open_lock()
            assert segment.try_enter() is None
            kill_and_reap(child)
            with segment as words:
                assert words[LOG_HEAD] == 0
                assert words[TABLE_TAIL] == 0
                words[LOG_HEAD] = 5
        with segment as words:
            assert words[LOG_HEAD] == 5


def test_waiting_for_the_lock_ends_when_its_holder_is_killed() -> None:
    with (
        open_segment(2) as segment,
        child_holding_the_lock(segment, lambda words: None) as child,
    ):
        segment.open_lock()
        killer = threading.Timer(0.05, kill_and_reap, [child])
        killer.start()
        with segment as words:
            assert words[LOG_HEAD] == 0
        killer.join()


def test_a_free_lock_is_taken_by_trying() -> None:
    with open_segment(1) as segment:
        segment.open_lock()
        words = segment.try_enter()
        assert words is not None
        with segment.entered(words) as same:
            same[LOG_HEAD] = 3
        words = segment.try_enter()
        assert words is not None
        with pytest.raises(LookupError):
            change_and_fail(segment.entered(words))
        with segment as words:
            assert words[LOG_HEAD] == 3


def test_each_segment_has_a_lock_of_its_own() -> None:
    with open_segment(1) as one, open_segment(1) as other:
        one.open_lock()
        other.open_lock()
        with one, other as words:
            assert words[LOG_HEAD] == 0


def test_who_waits_for_the_lock_is_known() -> None:
    """Of this segment's lock, and only while it waits."""
    with open_segment(1) as segment, open_segment(1) as other:
        started, start = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(start)
            os.read(started, 1)
            segment.open_lock()
            with segment:
                os._exit(0)
        os.close(started)
        segment.open_lock()
        try:
            with segment:
                assert segment.lock_waiters() == set()
                os.close(start)
                deadline = time.monotonic() + SOON_SECONDS
                while not segment.lock_waiters() and time.monotonic() < deadline:
                    os.sched_yield()
                assert segment.lock_waiters() == {child}
                assert other.lock_waiters() == set()
            assert os.waitpid(child, 0)[1] == 0
        finally:
            kill_and_reap(child)
        assert segment.lock_waiters() == set()


def test_waking_reaches_those_in_the_mask_only() -> None:
    with open_segment(4) as segment:
        segment.wake(0)
        assert [was_woken(segment, worker) for worker in range(5)] == [False] * 5
        segment.wake(0b1010)
        segment.wake(0b1000)
        assert [was_woken(segment, worker) for worker in range(5)] == [
            *(False, True, False, True),
            False,
        ]
        segment.wake_front()
        assert [was_woken(segment, worker) for worker in range(5)] == [False] * 4 + [True]


def test_a_pulse_ages_until_the_next_one() -> None:
    with open_segment(2) as segment:
        begin = time.monotonic()
        segment.beat(0)
        first = segment.silence_seconds(0)
        assert 0 <= first <= time.monotonic() - begin
        assert segment.silence_seconds(0) >= first
        assert segment.silence_seconds(1) > segment.silence_seconds(0)


def test_descriptors_do_not_reach_other_programs() -> None:
    segment = Segment(2, small_limits())
    segment.open_lock()
    try:
        for fd in (segment.fd, segment._lock, *segment.eventfds):
            assert not os.get_inheritable(fd)
    finally:
        close_segment(segment)
