"""The shared memory and its lock: all of a hold's changes count, or none."""

import gc
import hashlib
import importlib
import os
import struct
import time

import pytest

from sbus.shared import shared_memory
from sbus.shared.shared_memory import (
    LAYOUT_VERSION,
    LOG_HEAD,
    PAGE_BYTES,
    TABLE_TAIL,
    WORKERS_MAX,
    MemoryLock,
    SharedMemory,
    UnusableMemory,
    look_at,
)
from tests.support.children import child_that, kill_and_reap
from tests.unit.shared.memories import (
    child_holding_the_lock,
    open_memory,
    small_limits,
    was_woken,
)

SOON_SECONDS = 60.0


def change_and_fail(lock: MemoryLock) -> None:
    with lock as words:
        words[LOG_HEAD] = 99
        raise LookupError


def test_the_parts_follow_each_other_without_overlap() -> None:
    with open_memory(3, small_limits(log_bytes=8192, table_bytes=4096)) as memory:
        first, second = memory.arena_offsets
        assert memory.log_offset % PAGE_BYTES == 0
        assert first - memory.log_offset == 8192
        assert second - first == 4096
        assert os.fstat(memory.fd).st_size == second + 4096


@pytest.mark.parametrize("workers", [0, WORKERS_MAX + 1])
def test_a_bus_has_1_to_64_workers(workers: int) -> None:
    with pytest.raises(ValueError, match=str(workers)):
        SharedMemory(workers, small_limits())


def test_a_process_killed_in_a_critical_section_has_changed_nothing() -> None:
    def act(words: memoryview) -> None:
        words[LOG_HEAD] = 77
        words[TABLE_TAIL] = 78

    with open_memory(3) as memory:
        with child_holding_the_lock(memory, act) as child:
            memory.lock.open()
            assert not memory.lock.try_acquire()
            kill_and_reap(child)
            with memory.lock as words:
                assert words[LOG_HEAD] == 0
                assert words[TABLE_TAIL] == 0
                words[LOG_HEAD] = 5
        with memory.lock as words:
            assert words[LOG_HEAD] == 5


def test_a_free_lock_can_be_taken_without_waiting() -> None:
    with open_memory(1) as memory:
        memory.lock.open()
        assert memory.lock.try_acquire()
        with memory.lock as words:
            words[LOG_HEAD] = 3
        assert memory.lock.try_acquire()
        with pytest.raises(LookupError):
            change_and_fail(memory.lock)
        with memory.lock as words:
            assert words[LOG_HEAD] == 3


def test_each_memory_has_a_lock_of_its_own() -> None:
    with open_memory(1) as one, open_memory(1) as other:
        one.lock.open()
        other.lock.open()
        with one.lock, other.lock as words:
            assert words[LOG_HEAD] == 0


def test_the_processes_that_wait_for_the_lock_are_known() -> None:
    """Of the lock of this memory, and only while it waits."""
    with open_memory(1) as memory, open_memory(1) as other:
        started, start = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(start)
            os.read(started, 1)
            memory.lock.open()
            with memory.lock:
                os._exit(0)
        os.close(started)
        memory.lock.open()
        try:
            with memory.lock:
                assert memory.lock.waiters() == set()
                os.close(start)
                deadline = time.monotonic() + SOON_SECONDS
                while not memory.lock.waiters() and time.monotonic() < deadline:
                    os.sched_yield()
                assert memory.lock.waiters() == {child}
                assert other.lock.waiters() == set()
            assert os.waitpid(child, 0)[1] == 0
        finally:
            kill_and_reap(child)
        assert memory.lock.waiters() == set()


def test_waking_reaches_only_the_workers_in_the_mask() -> None:
    with open_memory(4) as memory:
        memory.wake(0)
        assert [was_woken(memory, worker) for worker in range(5)] == [False] * 5
        memory.wake(0b1010)
        memory.wake(0b1000)
        assert [was_woken(memory, worker) for worker in range(5)] == [
            *(False, True, False, True),
            False,
        ]
        memory.wake_front()
        assert [was_woken(memory, worker) for worker in range(5)] == [False] * 4 + [True]


def test_a_heartbeat_ages_until_the_next_one() -> None:
    with open_memory(2) as memory:
        begin = time.monotonic()
        memory.record_heartbeat(0)
        first = memory.silence_seconds(0)
        assert 0 <= first <= time.monotonic() - begin
        assert memory.silence_seconds(0) >= first
        assert memory.silence_seconds(1) > memory.silence_seconds(0)


def test_descriptors_do_not_reach_other_programs() -> None:
    memory = SharedMemory(2, small_limits())
    memory.lock.open()
    try:
        for fd in (memory.fd, memory.lock.fd, *memory.eventfds):
            assert not os.get_inheritable(fd)
    finally:
        memory.close()


# -- another bus goes on with it -------------------------------------------------------------------


def test_it_waits_until_all_other_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child inherits the memory, and so its lock, and outlives its parent's use of it."""
    monkeypatch.setattr(shared_memory, "_END_SECONDS_MAX", 0.05)
    left = SharedMemory(1, small_limits())
    memfd = left.reopen()
    with child_that(lambda: None):
        left.close()
        del left
        gc.collect()
        with pytest.raises(UnusableMemory, match="has not ended"):
            SharedMemory(1, small_limits(), memfd)
    monkeypatch.undo()
    SharedMemory(1, small_limits(), memfd).close()
    os.close(memfd)


@pytest.mark.parametrize("content", [b"", bytes(4096), b"x" * 4096])
def test_any_other_file_has_no_shape(content: bytes) -> None:
    memfd = os.memfd_create("test")
    os.write(memfd, content)
    with pytest.raises(UnusableMemory, match="no memory of a bus"):
        look_at(memfd)
    os.close(memfd)


def layout_constants() -> list[str]:
    """Numbers and formats of the modules that say what is where."""
    names = "accounts client_slots held_time in_flight log_block log_share operation_times "
    names += "shared_memory stall_table subscription_table table_share worker_statistics"
    found = []
    for name in names.split():
        for constant, value in vars(importlib.import_module(f"sbus.shared.{name}")).items():
            if isinstance(value, struct.Struct):
                found.append(f"{name}.{constant}={value.format}")
            elif type(value) is int and not constant.endswith(("_SECONDS", "_VERSION")):
                found.append(f"{name}.{constant}={value}")
    return sorted(found)


def test_another_layout_has_another_version() -> None:
    """If this fails, count `LAYOUT_VERSION` up, unless nothing in the memory has changed."""
    digest = hashlib.sha256("\n".join(layout_constants()).encode()).hexdigest()
    assert (LAYOUT_VERSION, digest[:16]) == (9, "092b955aa144c721"), layout_constants()
