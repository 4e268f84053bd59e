"""Contract: the lock of the shared memory.

One process at a time is in a critical section. All that it writes to the words there becomes valid
at the end, or nothing: not if it fails, and not if it is killed. Then the lock is free for those
that wait, and for a bus that goes on with the memory when all processes have died.
"""

import gc
import os
import signal
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.shared.shared_memory import SharedMemory
from tests.support.children import kill_and_reap
from tests.support.threads import wait_until
from tests.unit.shared.memories import child_holding_the_lock, open_memory, small_limits

STATUS = {"done": 0, "failed": 2, "killed": -signal.SIGKILL}
Writes = list[tuple[int, int]]
WRITES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 1 << 60)), max_size=6)
SECTIONS = st.lists(st.tuples(WRITES, st.sampled_from(sorted(STATUS))), min_size=1, max_size=5)


class FailedError(Exception):
    """In a critical section."""


def start(memory: SharedMemory, act: Callable[[], None]) -> int:
    """A process that opens the lock, does this and ends."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)  # for a lock that is never free
            memory.lock.open()
            act()
            status = 0
        except FailedError:
            status = STATUS["failed"]
        finally:
            os._exit(status)
    return child


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write(words: memoryview | list[int], writes: Writes) -> None:
    for at, value in writes:
        words[at % len(words)] = value


def enter(memory: SharedMemory, writes: Writes, end: str = "done") -> None:
    with memory.lock as words:
        write(words, writes)
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "failed":
            raise FailedError


def check(memory: SharedMemory, expected: list[int]) -> None:
    """It is free, and these are the first words."""
    assert memory.lock.try_acquire(), "it is not free"
    with memory.lock as words:
        assert words.tolist()[: len(expected)] == expected


def live(sections: list[tuple[Writes, str]]) -> tuple[int, list[int]]:
    """The life of a memory; the descriptor that is left, and what its words must be."""
    memory = SharedMemory(2, small_limits())
    expected = [0] * memory.lock.block_words
    for writes, end in sections:
        assert status_of(start(memory, lambda: enter(memory, writes, end))) == STATUS[end]  # noqa: B023
        if end == "done":
            write(expected, writes)
        assert status_of(start(memory, lambda: check(memory, expected))) == 0
    memory.lock.open()
    enter(memory, [(0, 1)])
    write(expected, [(0, 1)])
    left = memory.reopen()
    memory.close()
    return left, expected


@settings(max_examples=10)
@given(SECTIONS)
def test_all_of_a_section_is_valid_or_nothing(sections: list[tuple[Writes, str]]) -> None:
    """Each is that of another process, and each process sees what those before it have done; so
    does a bus that goes on with the memory."""
    left, expected = live(sections)
    gc.collect()  # a mapping keeps the memory in use
    resumed = SharedMemory(2, small_limits(), left)
    os.close(left)
    assert status_of(start(resumed, lambda: check(resumed, expected))) == 0
    resumed.close()


def test_others_go_on_when_a_section_has_failed() -> None:
    with open_memory(2) as memory:
        wait, tell = os.pipe()

        def check_then() -> None:
            os.read(wait, 1)
            check(memory, [0])

        other = start(memory, check_then)
        memory.lock.open()
        with pytest.raises(FailedError):
            enter(memory, [(0, 5)], "failed")
        os.write(tell, b".")
        assert status_of(other) == 0
        check(memory, [0])
        os.close(wait)
        os.close(tell)


@pytest.mark.parametrize("killed", [0, 2])
def test_one_process_at_a_time(killed: int) -> None:
    """Several add to two words; some are killed meanwhile, wherever they are."""
    with open_memory(2) as memory:
        told, tell = os.pipe()

        def add() -> None:
            for _ in range(200):
                with memory.lock as words:
                    words[0], last = words[0] + 1, words[-1]
                    os.sched_yield()
                    words[-1] = last + 1
                os.write(tell, b".")

        children = [start(memory, add) for _ in range(4)]
        os.close(tell)
        done = 0
        for child in children[:killed]:
            done += len(os.read(told, 40))
            os.kill(child, signal.SIGKILL)
        assert [status_of(child) for child in children][killed:] == [0] * (4 - killed)
        while more := len(os.read(told, 10_000)):
            done += more
        os.close(told)
        memory.lock.open()
        with memory.lock as words:
            assert words[0] == words[-1]
            assert done <= words[0] <= done + killed


def test_a_death_lets_those_that_wait_go_on() -> None:
    with open_memory(2) as memory:
        with child_holding_the_lock(memory, lambda words: write(words, [(0, 5)])) as holder:
            waiting = start(memory, lambda: enter(memory, [(1, 7)]))
            memory.lock.open()
            try:
                wait_until(lambda: memory.lock.waiters() == {waiting}, "it waits", 5.0)
                assert not memory.lock.try_acquire()
                kill_and_reap(holder)
                assert status_of(waiting) == 0
            finally:
                kill_and_reap(waiting)
        check(memory, [0, 7])
