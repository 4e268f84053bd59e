"""The memory that all processes of a bus share, and its lock.

One memfd, mapped by every process before the workers are forked, or found in the descriptor store
by a bus that goes on when all processes of this one have died:

    control words | heartbeats | served clients | statistics | operation times | accounts | stalls |
    client slots | in flight | receipts | ordered log | table arena 0 | table arena 1

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
from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final

import msgspec

from sbus.errors import SbusError
from sbus.limits import Limits
from sbus.shared.accounts import accounts_words
from sbus.shared.client_slots import client_slots_max, client_slots_words
from sbus.shared.operation_times import OperationTimes, operation_words
from sbus.shared.receipt_table import receipt_words
from sbus.shared.stall_table import stall_table_words
from sbus.shared.worker_statistics import statistics_words
from sbus.unix.file_lock import lock_file

LAYOUT_VERSION: Final = 9
"""Of everything in this memory. A program goes on only with a memory that has its own version: this
changes with every change of what a word, a record of the table or a log block means."""
WORKERS_MAX = 64
"""A message's destinations are one bit each in a 64-bit word."""

IN_FLIGHT_WORDS = 2048
"""For what one worker is delivering: 16 KiB, most of them for keys."""

WORD_BYTES = 8
PAGE_BYTES = 4096

_END_SECONDS_MAX = 3.0
"""For which a bus waits for the end of all processes of the one that it goes on for. They end, or
are killed, within a second of their front."""
_RETRY_SECONDS = 0.005

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
LAST_PLACE = 10  # of the last message that has one
LOG_LOW = 11  # a low-water mark of the log (see `ordered_log`), or less
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
# What a bus that goes on with this memory reads first: the layout, five words of the shape, and
# whether it is kept, with the number of buses that went on with it and have not served for a while.
_LAYOUT = 1
_SHAPE = 2
_KEPT = 7
COPIES = 8
_MAGIC: Final = 0x73627573 << 32  # "sbus"
_LOW_MASK: Final = 0xFFFF_FFFF
_IS_KEPT: Final = 1 << 32
_DIALECT_SHIFT: Final = 40


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


class MemoryShape(msgspec.Struct, frozen=True):
    """What the sizes of the parts of a memory follow from."""

    workers: int
    log_bytes: int
    table_bytes: int
    users_max: int
    blocking_clients_max: int
    slots: int

    @classmethod
    def of(cls, workers: int, limits: Limits) -> "MemoryShape":
        """That of a bus which starts now."""
        return cls(
            workers,
            limits.log_bytes,
            limits.table_bytes,
            limits.users_max,
            limits.blocking_clients_max,
            client_slots_max(),
        )

    @classmethod
    def of_words(cls, words: Sequence[int]) -> "MemoryShape":
        """That of which `words` were written."""
        workers, log_bytes, table_bytes, users_max, places = words
        blocking_clients_max, slots = places >> 32, places & _LOW_MASK
        return cls(workers, log_bytes, table_bytes, users_max, blocking_clients_max, slots)

    def words(self) -> list[int]:
        places = self.blocking_clients_max << 32 | self.slots
        return [self.workers, self.log_bytes, self.table_bytes, self.users_max, places]

    def applied_to(self, limits: Limits) -> Limits:
        """These limits with those that have this shape."""
        names = ("log_bytes", "table_bytes", "users_max", "blocking_clients_max")
        return msgspec.structs.replace(limits, **{name: getattr(self, name) for name in names})


class UnusableMemory(SbusError):
    """No bus can go on with this memory."""


class LeftMemory(msgspec.Struct, frozen=True):
    """What a memory says that another bus has left."""

    shape: MemoryShape
    is_kept: bool
    resume_attempts: int
    """See `SharedMemory`."""
    dialect: int


def look_at(memfd: int) -> LeftMemory:
    """What this memory says, which another bus has left. Raises UnusableMemory."""
    try:
        header = memoryview(os.pread(memfd, COPIES * WORD_BYTES, 0)).cast("Q")
    except (OSError, TypeError) as error:
        raise UnusableMemory("it is no memory of a bus") from error
    if len(header) < COPIES or header[_LAYOUT] & ~_LOW_MASK != _MAGIC:
        raise UnusableMemory("it is no memory of a bus")
    if header[_LAYOUT] != _MAGIC | LAYOUT_VERSION:
        raise UnusableMemory(f"its memory has layout {header[_LAYOUT] & _LOW_MASK}")
    shape = MemoryShape.of_words(header[_SHAPE:_KEPT].tolist())
    if not 1 <= shape.workers <= WORKERS_MAX:
        raise UnusableMemory(f"its memory is one of {shape.workers} workers")
    kept = header[_KEPT]
    dialect = kept >> _DIALECT_SHIFT
    return LeftMemory(shape, bool(kept & _IS_KEPT), kept & _LOW_MASK, dialect)


class SharedMemory:
    """The shared memory of one bus: its parts, its lock, and the eventfds that wake workers."""

    def __init__(self, workers: int, limits: Limits, memfd: int | None = None) -> None:
        """Make it, or go on with one that another bus has left: then the number of workers and the
        limits are those of its shape. Borrows the memfd. Raises OSError, UnusableMemory."""
        if not 1 <= workers <= WORKERS_MAX:
            raise ValueError(f"a bus has 1 to {WORKERS_MAX} workers, not {workers}")
        self.shape = MemoryShape.of(workers, limits) if memfd is None else look_at(memfd).shape
        self.is_resumed = memfd is not None
        """Whether this bus goes on with what another one has left."""
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
        slots_end = slots_at + WORD_BYTES * client_slots_words(self.shape.slots)
        in_flight_end = slots_end + WORD_BYTES * IN_FLIGHT_WORDS * workers
        receipts_end = in_flight_end + WORD_BYTES * receipt_words(workers)
        self.log_offset = _round_up(receipts_end, PAGE_BYTES)
        first_arena = self.log_offset + self.log_bytes
        self.arena_offsets = (first_arena, first_arena + self.arena_bytes)
        size = self.arena_offsets[1] + self.arena_bytes
        self.fd = _make(size) if memfd is None else _reopen(memfd, size)
        self.map = mmap.mmap(self.fd, 0)
        view = memoryview(self.map)
        self._header = view[: COPIES * WORD_BYTES].cast("Q")
        self._header[_SHAPE:_KEPT] = memoryview(array("Q", self.shape.words()))
        self._header[_LAYOUT] = _MAGIC | LAYOUT_VERSION
        self.lock = MemoryLock(self.fd, view[:control_bytes].cast("Q"), block_words)
        beats = view[control_bytes:statistics_at].cast("Q")
        self._heartbeats = beats[:WORKERS_MAX]
        self.served_clients = beats[WORKERS_MAX : 2 * WORKERS_MAX]
        """The client that each worker serves now, or served when it died; or 0."""
        self.statistics = view[statistics_at:operations_at].cast("Q")
        self.operations = view[operations_at:accounts_at].cast("Q")
        """Of each worker, then of the front."""
        self.accounts = view[accounts_at:stalls_at].cast("Q")
        self.stalls = view[stalls_at:stalls_end].cast("Q")
        self.client_slots = view[slots_at:slots_end].cast("Q")
        self.in_flight = view[slots_end:in_flight_end].cast("Q")
        self.receipts = view[in_flight_end:receipts_end].cast("Q")
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

    # -- a bus that goes on when all processes of this one have died --------------------------
    @property
    def is_kept(self) -> bool:
        """Whether another bus may go on with it: then a process that ends alone, or with all
        others, ends no connection."""
        return bool(self._header[_KEPT] & _IS_KEPT)

    @is_kept.setter
    def is_kept(self, is_kept: bool) -> None:
        self._header[_KEPT] = self._header[_KEPT] & ~_IS_KEPT | _IS_KEPT * is_kept

    @property
    def resume_attempts(self) -> int:
        """How many buses in a row went on with it, and have not served for a while."""
        return int(self._header[_KEPT] & _LOW_MASK)

    @resume_attempts.setter
    def resume_attempts(self, resume_attempts: int) -> None:
        self._header[_KEPT] = self._header[_KEPT] & ~_LOW_MASK | resume_attempts

    @property
    def dialect(self) -> int:
        """The number of the dialect in which patterns are journalled."""
        return int(self._header[_KEPT] >> _DIALECT_SHIFT)

    @dialect.setter
    def dialect(self, number: int) -> None:
        kept = self._header[_KEPT] & ((1 << _DIALECT_SHIFT) - 1)
        self._header[_KEPT] = kept | number << _DIALECT_SHIFT

    def close(self) -> None:
        """Close its descriptors; the mapping goes with its last view."""
        for fd in (self.fd, *self.eventfds, self.lock.fd):
            if fd >= 0:
                os.close(fd)

    def reopen(self) -> int:
        """A descriptor for another bus; the caller closes it. Raises OSError."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)

    def record_heartbeat(self, worker: int) -> None:
        self._heartbeats[worker] = time.monotonic_ns()

    def silence_seconds(self, worker: int) -> float:
        """The age of the heartbeat of `worker`."""
        return (time.monotonic_ns() - self._heartbeats[worker]) / 1e9


def _make(size: int) -> int:
    """A new memory, locked until all processes that inherit the descriptor have ended."""
    fd = os.memfd_create("sbus", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    lock_file(fd)
    return fd


def _reopen(memfd: int, size: int) -> int:
    """The same for a memory that another bus has left."""
    if os.fstat(memfd).st_size != size:
        raise UnusableMemory("its memory has another size")
    fd = os.open(f"/proc/self/fd/{memfd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        _wait_for_lock(fd)
    except UnusableMemory:
        os.close(fd)
        raise
    return fd


def _wait_for_lock(fd: int) -> None:
    """Wait until all processes of the other bus have ended, and lock its memory."""
    deadline = time.monotonic() + _END_SECONDS_MAX
    while True:
        try:
            return lock_file(fd)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise UnusableMemory("a process of the other bus has not ended") from error
        time.sleep(_RETRY_SECONDS)


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step
