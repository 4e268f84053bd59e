"""The memory that all processes of a bus share, and its lock.

One memfd, mapped by every process before the workers are forked:

    control words | heartbeats | served clients | statistics | operation times | accounts | stalls |
    client slots | in flight | ordered log | table arena 0 | table arena 1

*Control words* exist twice. A critical section works on the spare copy and flips a selector as its
last store. A process that dies before the flip has changed nothing: the next critical section
starts from the copy that the selector names. Bytes of the log and of the arenas are written before
the flip that makes them valid, so they need no second copy.

The lock is `flock` on an open file description of the memfd that each process opens for itself:
the kernel frees it when its holder dies. A process must not fork while it has one open, or its
child would keep the lock alive. Locking and unlocking are full memory barriers, and control words
are read and written under the lock only, so nothing depends on the processor's memory order. The
heartbeats need no lock: each has one writer, and a reader wants nothing but its age. The modules
for statistics, operation times, accounts, stalls, client slots and what is in flight say who writes
their words; each word is valid by itself.
"""

import fcntl
import mmap
import os
import time
from contextlib import AbstractContextManager, suppress

from sbus.limits import Limits
from sbus.shared.accounts import accounts_words
from sbus.shared.client_slots import client_slots_words
from sbus.shared.operation_times import OperationTimes, operation_words
from sbus.shared.stall_table import stall_table_words
from sbus.shared.worker_statistics import statistics_words

WORKERS_MAX = 64
"""A message's destinations are one bit each in a 64-bit word."""

IN_FLIGHT_WORDS = 2048
"""For what one worker is delivering: 16 KiB, most of them for keys."""

WORD_BYTES = 8
PAGE_BYTES = 4096

# Places in a copy of the control words.
LOG_HEAD = 0  # where the next log block goes; positions only ever grow
TABLE_EPOCH = 1  # number of compactions so far; its lowest bit is the arena in use
TABLE_TAIL = 2  # end of the journal in the arena in use
TABLE_GENERATION = 3  # end of the last record that concerns workers other than its own
TABLE_BASE = 4  # where the records since the last compaction begin
TABLE_PREVIOUS_TAIL = 5  # where the journal in the other arena ended when it was replaced
ALIVE = 6  # workers that serve clients, one bit each
SLEEPING = 7  # workers to wake when something is destined to them
WAITING = 8  # workers that wait for room in the log
COMPACTION_WANTED = 9  # 1 when the front should compact the table
WORKER_WORDS = 16  # here begin the words of worker 0, then those of worker 1, ...

# Places in the words of one worker.
LOG_START = 0  # start of the first log block destined to it since it last had nothing to walk
LOG_END = 1  # end of the last log block destined to it
LOG_CURSOR = 2  # how far it has walked; written by that worker only, until it is dead
LOG_WINDOW = 3  # how many bytes may wait for it before publishers of other workers must wait
LOG_WAITERS = 4  # workers that wait until it has walked further
LOG_ROUND = 5  # number of rounds (see `log_share`) that have begun
LOG_SHARE = 6  # bytes that each user may append for it in this round; 0: no bound
LOG_CONTENDERS = 7  # users that waited for it in this round
EPOCH_SEEN = 8  # the epoch of the table that it reads
LOG_ENTRIES = 9  # log entries in all log blocks destined to it so far
LOG_WALKED = 10  # those of them that it has walked
LOG_ENTRY_BYTES = 11  # what each of the others counts for at least in its lag
STEP_BATCH = 12  # number of its last publish batch with recipients of its own, and its messages
STEP_END = 13  # to where it walks the log before its last step takes effect
STEP_REQUEST = 14  # mark of its last step of a request: a subscription begins or ends there
WORDS_PER_WORKER = 15

SELECTOR = 0
COPIES = 8


class MemoryLock:
    """The lock of the shared memory: `with lock as words` is one critical section on the words."""

    def __init__(self, memfd: int, words: memoryview, block_words: int) -> None:
        self._memfd = memfd
        self.words = words
        """The selector, then the two copies of the control words."""
        self.block_words = block_words
        """The size of a copy."""
        self._copies = tuple(
            words[COPIES + i * block_words : COPIES + (i + 1) * block_words] for i in range(2)
        )
        self._spare = 1
        self.fd = -1
        self.timed: AbstractContextManager[memoryview] = self
        """The same lock, for critical sections that may last; see `TimedLock`."""

    def open(self) -> None:
        """Open this process's own description of the lock; do not fork after it."""
        if self.fd < 0:
            self.fd = os.open(f"/proc/self/fd/{self._memfd}", os.O_RDWR | os.O_CLOEXEC)

    def try_acquire(self) -> bool:
        """Take the lock if it is free; then `with lock` begins at once, and must follow."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __enter__(self) -> memoryview:
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        current = self.words[SELECTOR]
        self._spare = 1 - current
        spare = self._copies[self._spare]
        spare[:] = self._copies[current]
        return spare

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Make the changed words valid, unless an error left them half changed; free the lock."""
        if kind is None:
            self.words[SELECTOR] = self._spare
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def waiters(self) -> set[int]:
        """The processes that wait for the lock now, as the kernel lists them; empty if it does not,
        or if this process may not read the list.
        Source: proc_locks(5); `->` stands before the lock that a process waits for."""
        inode = os.fstat(self._memfd).st_ino
        waiters = set()
        with suppress(OSError), open("/proc/locks", "rb") as locks:
            for line in locks:
                fields = line.split()
                if fields[1:3] == [b"->", b"FLOCK"] and fields[6].endswith(b":%d" % inode):
                    waiters.add(int(fields[5]))
        return waiters


class TimedLock:
    """The lock of the shared memory, whose critical sections are operations."""

    def __init__(self, lock: MemoryLock, operations: OperationTimes) -> None:
        self._lock = lock
        self._operations = operations
        self._entered_at = 0.0

    def __enter__(self) -> memoryview:
        words = self._lock.__enter__()
        self._entered_at = time.perf_counter()
        return words

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._lock.__exit__(kind, *details)
        self._operations.record("hold", time.perf_counter() - self._entered_at)


class SharedMemory:
    """The shared memory of one bus: its parts, its lock, and the eventfds that wake workers."""

    def __init__(self, workers: int, limits: Limits) -> None:
        if not 1 <= workers <= WORKERS_MAX:
            raise ValueError(f"a bus has 1 to {WORKERS_MAX} workers, not {workers}")
        self.workers = workers
        self.log_bytes = limits.log_bytes
        self.arena_bytes = limits.table_bytes
        block_words = WORKER_WORDS + WORDS_PER_WORKER * workers
        control_bytes = _round_up((COPIES + 2 * block_words) * WORD_BYTES, PAGE_BYTES)
        statistics_at = control_bytes + PAGE_BYTES
        operations_at = statistics_at + WORD_BYTES * statistics_words(workers)
        accounts_at = operations_at + WORD_BYTES * operation_words(workers + 1)
        stalls_at = accounts_at + WORD_BYTES * accounts_words(workers, limits)
        stalls_end = stalls_at + WORD_BYTES * stall_table_words(workers, limits)
        slots_at = _round_up(stalls_end, PAGE_BYTES)
        slots_end = slots_at + WORD_BYTES * client_slots_words()
        in_flight_end = slots_end + WORD_BYTES * IN_FLIGHT_WORDS * workers
        self.log_offset = _round_up(in_flight_end, PAGE_BYTES)
        first_arena = self.log_offset + self.log_bytes
        self.arena_offsets = (first_arena, first_arena + self.arena_bytes)
        self.fd = os.memfd_create("sbus", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.arena_offsets[1] + self.arena_bytes)
        self.map = mmap.mmap(self.fd, 0)
        view = memoryview(self.map)
        self.lock = MemoryLock(self.fd, view[:control_bytes].cast("Q"), block_words)
        beats = view[control_bytes:statistics_at].cast("Q")
        self._heartbeats, self.served_clients = beats[:WORKERS_MAX], beats[WORKERS_MAX:]
        """The latter: the client that each worker serves now, or served when it died; or 0."""
        self.statistics = view[statistics_at:operations_at].cast("Q")
        self.operations = view[operations_at:accounts_at].cast("Q")
        """Of each worker, then of the front."""
        self.accounts = view[accounts_at:stalls_at].cast("Q")
        self.stalls = view[stalls_at:stalls_end].cast("Q")
        self.client_slots = view[slots_at:slots_end].cast("Q")
        self.in_flight = view[slots_end:in_flight_end].cast("Q")
        self.eventfds = tuple(
            os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(workers + 1)
        )
        """One for each worker, then the front's: a write makes it read the control words."""

    def wake(self, mask: int) -> None:
        """Make the workers in `mask` look at the control words again."""
        while mask:
            bit = mask & -mask
            os.eventfd_write(self.eventfds[bit.bit_length() - 1], 1)
            mask ^= bit

    def wake_front(self) -> None:
        os.eventfd_write(self.eventfds[self.workers], 1)

    def record_heartbeat(self, worker: int) -> None:
        self._heartbeats[worker] = time.monotonic_ns()

    def silence_seconds(self, worker: int) -> float:
        """The age of the heartbeat of `worker`."""
        return (time.monotonic_ns() - self._heartbeats[worker]) / 1e9


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step
