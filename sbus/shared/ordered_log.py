"""The ordered log: one sequence of messages for all workers, in a ring of shared memory.

A worker appends a batch of one publisher's messages as one *block*, in one hold of the lock:

    block  = mask of destination workers, length, count, publisher, its uid, time  |  entry ...
    entry  = mask of destination workers, packet length, key length |  packet

Positions are bytes since the beginning of time; a position's place is its remainder by the size of
the ring. A block never wraps: what is left at the end is skipped by a block without destinations.

Each worker has two words: the end of the last block destined to it, and the start of the first one
since it was last caught up. It walks from there, or from its own cursor if that is further, to the
end, skipping blocks that do not name it. Only workers that are short of their end hold the log
back, so an idle worker costs nothing and need not be woken.

    low-water mark = min over living workers with cursor < end of max(cursor, start), else head
    room           = size - (head - low-water mark)

A worker that finds no room joins the *waiting* set; while that is not empty nobody else appends
either, and whoever raises the low-water mark so far that a quarter of the log is free wakes all of
them. So   waiting != {}  =>  room < size / 4   holds between any two holds of the lock, and nobody
who waits is overtaken for longer than it takes to free that quarter.

Bytes say little about work: a hundred of them may be one delivery or a thousand. So every worker
also has a *window*, the bytes it can walk in a given time as it has measured it, and nobody appends
for a worker whose lag is larger:

    lag(worker) = end - max(cursor, start) while cursor < end, else 0
    waiters(worker) != {}  =>  lag > window / 2, when that worker last shared its cursor

That bounds how old a message is when it is delivered, and for how long a walk occupies a worker.

When the waiters are let go, a *round* of that worker ends. If several users waited, each has the
same share of half a window in the next one; a user that has used less of it than that need not
wait, whoever else does, until the lag is two windows. So a flood fills the log for nobody but its
own user.

Every method that takes `words` runs under the lock. This module does not know what a packet means,
nor who is subscribed to what.
"""

import struct
from collections.abc import Iterator, Sequence

import msgspec

from sbus.errors import ConfigurationError
from sbus.limits import Limits
from sbus.shared.log_share import LogShare
from sbus.shared.shared_memory import (
    ALIVE,
    LOG_CONTENDERS,
    LOG_CURSOR,
    LOG_END,
    LOG_HEAD,
    LOG_ROUND,
    LOG_SHARE,
    LOG_START,
    LOG_WAITERS,
    LOG_WINDOW,
    PAGE_BYTES,
    SLEEPING,
    WAITING,
    WORDS_PER_WORKER,
    WORKER_WORDS,
    SharedMemory,
)

_BLOCK = struct.Struct("<QIIQII")  # mask, length, count, publisher, uid, time: 32 bytes
_ENTRY = struct.Struct("<QII")  # mask, packet length, key length
TIME_MASK = 0xFFFFFFFF
"""When a block's messages were received, in microseconds, keeps 32 bits of it: more than an
hour."""
BLOCK_ALIGN_BYTES = 32
"""Blocks begin at multiples of this, so that a header always fits before the end of the ring."""


class LogStatistics(msgspec.Struct, frozen=True):
    """What `sbusctl` and the tests see of the log."""

    head: int
    used_bytes: int
    size_bytes: int
    waiting: int


WINDOW_SECONDS = 0.01
"""Work that may wait in front of a worker: more is latency, less and it runs dry when the processor
is given to somebody else for a moment."""
WINDOW_BYTES_MIN = 128
_MODEST_PART = 4
"""Who has put less than this part of a window in front of a worker since it was last caught up need
not wait with those who flood it."""
_PACE_MEMORY = 0.8
"""How much of what was known about a worker's speed stays when it has walked once more."""


class Block(msgspec.Struct, frozen=True):
    """Messages of one publisher, laid out for the log; `mask` is the union of theirs."""

    mask: int
    data: bytes


def build_block(
    publisher: int, uid: int, received_us: int, entries: Sequence[tuple[int, bytes, int]]
) -> Block:
    """Lay out (destination mask, packet, key length) entries of one client and its user, received
    at this time of `time.monotonic_ns`; none may be without destination."""
    union = 0
    parts: list[bytes] = [b""]
    length = _BLOCK.size
    pack = _ENTRY.pack
    for mask, packet, key_bytes in entries:
        union |= mask
        parts.append(pack(mask, len(packet), key_bytes))
        parts.append(packet)
        length += _ENTRY.size + len(packet)
    padding = -length % BLOCK_ALIGN_BYTES
    time_us = received_us & TIME_MASK
    parts[0] = _BLOCK.pack(union, length + padding, len(entries), publisher, uid, time_us)
    parts.append(bytes(padding))
    return Block(union, b"".join(parts))


def check_log_size(limits: Limits) -> None:
    """A quarter of the log must take the largest block and the skip before it.

    Raises ConfigurationError.
    """
    packets = limits.batch_packets_max
    largest = limits.batch_bytes_max + limits.packet_bytes_max + 32 * (packets + 2)
    if limits.log_bytes % PAGE_BYTES or limits.log_bytes < 8 * largest:
        least = (8 * largest + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        raise ConfigurationError(
            f"log_bytes={limits.log_bytes}: must be a multiple of {PAGE_BYTES} and, for these "
            f"packet and batch sizes, at least {least}"
        )


class OrderedLog:
    """One process's view of the log. `worker` is None for a process that does not walk it."""

    def __init__(self, memory: SharedMemory, worker: int | None = None) -> None:
        self._memory = memory
        self._map = memory.map
        self._offset = memory.log_offset
        self._size = memory.log_bytes
        self._workers = memory.workers
        self._low = 0
        self.worker = worker
        self._bit = 0 if worker is None else 1 << worker
        self._own = 0 if worker is None else _base(worker)
        self.cursor = 0
        """How far this worker has walked; shared with the next hold of the lock."""
        self._window = WINDOW_BYTES_MIN
        self._walked_bytes = 0.0
        self._walked_seconds = 0.0

    # -- under the lock ------------------------------------------------------------------------
    def start(self, words: memoryview) -> None:
        """Begin to serve: whatever was destined to this slot before is not walked."""
        self.cursor = words[LOG_HEAD]
        words[self._own + LOG_CURSOR] = self.cursor
        words[self._own + LOG_END] = self.cursor
        words[self._own + LOG_WINDOW] = self._window
        words[ALIVE] |= self._bit

    def block_bytes_max(self, words: memoryview, mask: int) -> int:
        """What a block for these destinations should have at most, if it is more than one message:
        what takes the slowest of them half a window to walk."""
        least = self._size
        mask &= words[ALIVE]
        while mask:
            bit = mask & -mask
            least = min(least, words[_base(bit.bit_length() - 1) + LOG_WINDOW] // 2)
            mask ^= bit
        return least

    def append(self, words: memoryview, block: Block, share: LogShare) -> int:
        """Append `block` of the user who has `share`; returns the workers to wake, or -1 when it
        has to wait.

        Then this worker is among those who wait for a destination or for room, and will be woken.
        """
        mask = block.mask & words[ALIVE]
        if (late := _late_destination(words, mask, share)) is not None:
            at = _base(late)
            words[at + LOG_WAITERS] |= self._bit
            words[at + LOG_CONTENDERS] += share.contends(late, words[at + LOG_ROUND])
            return -1
        head = words[LOG_HEAD]
        data = block.data
        place = head % self._size
        skip = self._size - place if place + len(data) > self._size else 0
        if words[WAITING] or not self._has_room(words, head + skip + len(data)):
            words[WAITING] |= self._bit
            return -1
        if skip:
            _BLOCK.pack_into(self._map, self._offset + place, 0, skip, 0, 0, 0, 0)
            head += skip
            place = 0
        at = self._offset + place
        self._map[at : at + len(data)] = data
        end = head + len(data)
        words[LOG_HEAD] = end
        return self._destine(words, mask, head, end, share)

    def _has_room(self, words: memoryview, end: int) -> bool:
        if end - self._low > self._size:
            self._low = self._low_water_mark(words)
        return end - self._low <= self._size

    def _low_water_mark(self, words: memoryview) -> int:
        low: int = words[LOG_HEAD]
        alive = words[ALIVE]
        for worker in range(self._workers):
            at = _base(worker)
            cursor = words[at + LOG_CURSOR]
            if alive >> worker & 1 and cursor < words[at + LOG_END]:
                low = min(low, max(cursor, words[at + LOG_START]))
        return low

    def _destine(self, words: memoryview, mask: int, start: int, end: int, share: LogShare) -> int:
        wake: int = mask & words[SLEEPING]
        words[SLEEPING] &= ~wake
        while mask:
            bit = mask & -mask
            worker = bit.bit_length() - 1
            at = _base(worker)
            if words[at + LOG_CURSOR] >= words[at + LOG_END]:
                words[at + LOG_START] = start
                _begin_round(words, at, 0)
            words[at + LOG_END] = end
            _appended_bytes(words, worker, share)
            share.add(worker, end - start)
            mask ^= bit
        return wake

    def share_cursor(self, words: memoryview) -> int:
        """Share how far this worker has walked; returns the waiting workers to wake."""
        own = self._own
        words[own + LOG_CURSOR] = self.cursor
        words[own + LOG_WINDOW] = self._window
        wake = 0
        if words[own + LOG_WAITERS] and _lag(words, own) <= self._window // 2:
            wake = words[own + LOG_WAITERS]
            words[own + LOG_WAITERS] = 0
            contenders = words[own + LOG_CONTENDERS]
            _begin_round(words, own, self._window // 2 // contenders if contenders > 1 else 0)
        return wake | self.release_waiting(words)

    def release_waiting(self, words: memoryview) -> int:
        """The waiting workers, which wait no longer, if there is room again; else none."""
        waiting: int = words[WAITING]
        if waiting:
            self._low = self._low_water_mark(words)
            if words[LOG_HEAD] - self._low > self._size - self._size // 4:
                return 0
            words[WAITING] = 0
        return waiting

    def destined_end(self, words: memoryview) -> int:
        """The end of the last block destined to this worker. Moves the cursor up to the first."""
        end: int = words[self._own + LOG_END]
        if self.cursor < end:
            self.cursor = max(self.cursor, words[self._own + LOG_START])
        return end

    def sleep(self, words: memoryview) -> bool:
        """Ask to be woken, if there is nothing to walk; returns whether that was so."""
        if self.cursor < words[self._own + LOG_END]:
            return False
        words[SLEEPING] |= self._bit
        return True

    def reap(self, words: memoryview, worker: int) -> int:
        """Forget a dead worker: what was destined to it holds nobody back.

        Returns the waiting workers to wake.
        """
        keep = ~(1 << worker)
        for word in (ALIVE, SLEEPING, WAITING):
            words[word] &= keep
        for other in range(self._workers):
            words[_base(other) + LOG_WAITERS] &= keep
        at = _base(worker)
        words[at + LOG_CURSOR] = words[at + LOG_END]
        wake: int = words[at + LOG_WAITERS]
        words[at + LOG_WAITERS] = 0
        return wake | self.release_waiting(words)

    def statistics(self, words: memoryview) -> LogStatistics:
        """How full the log is; `waiting` is a mask of workers."""
        head = words[LOG_HEAD]
        return LogStatistics(head, head - self._low_water_mark(words), self._size, words[WAITING])

    def check_invariants(self, words: memoryview) -> None:
        """Raise AssertionError where the formulas on top of this file do not hold."""
        head = words[LOG_HEAD]
        used = head - self._low_water_mark(words)
        assert 0 <= used <= self._size
        assert not words[WAITING] or self._size - used < self._size // 4
        assert not words[SLEEPING] & ~words[ALIVE]
        for worker in range(self._workers):
            at = _base(worker)
            assert words[at + LOG_START] <= words[at + LOG_END] <= head
            assert words[at + LOG_CURSOR] <= head

    def note_pace(self, walked_bytes: int, seconds: float) -> None:
        """Learn how fast this worker walks; its window follows with the next shared cursor."""
        self._walked_bytes = self._walked_bytes * _PACE_MEMORY + walked_bytes
        self._walked_seconds = self._walked_seconds * _PACE_MEMORY + seconds
        window = int(self._walked_bytes * WINDOW_SECONDS / max(self._walked_seconds, 1e-9))
        self._window = min(max(window, WINDOW_BYTES_MIN), self._size // 2)

    # -- outside of the lock -------------------------------------------------------------------
    def blocks(self, end: int) -> Iterator[tuple[int, int, list[tuple[bytes, bytes]]]]:
        """Walk to `end`: of each block in order, the publisher's uid, the time of receipt &
        TIME_MASK, and (key, packet) of each entry destined to this worker.

        The cursor moves past a block when the next one is asked for.
        """
        bit = self._bit
        source = self._map
        unpack_entry = _ENTRY.unpack_from
        while self.cursor < end:
            at = self._offset + self.cursor % self._size
            mask, length, count, _publisher, uid, time_us = _BLOCK.unpack_from(source, at)
            if mask & bit:
                at += _BLOCK.size
                entries = []
                for _ in range(count):
                    entry_mask, packet_bytes, key_bytes = unpack_entry(source, at)
                    at += _ENTRY.size
                    if entry_mask & bit:
                        packet = source[at : at + packet_bytes]
                        entries.append((packet[4 : 4 + key_bytes], packet))
                    at += packet_bytes
                yield uid, time_us, entries
            self.cursor += length

    def entry_numbers(self) -> list[int]:
        """Of the block at the cursor: the numbers, from 0, of the entries destined to this
        worker."""
        at = self._offset + self.cursor % self._size
        _, _, count, *_ = _BLOCK.unpack_from(self._map, at)
        at += _BLOCK.size
        numbers = []
        for number in range(count):
            mask, packet_bytes, _ = _ENTRY.unpack_from(self._map, at)
            at += _ENTRY.size + packet_bytes
            if mask & self._bit:
                numbers.append(number)
        return numbers


def _late_destination(words: memoryview, mask: int, share: LogShare) -> int | None:
    """A destination that lags too far behind for this user."""
    while mask:
        bit = mask & -mask
        worker = bit.bit_length() - 1
        at = _base(worker)
        lag = _lag(words, at)
        window = words[at + LOG_WINDOW]
        if lag and (words[at + LOG_SHARE] or words[at + LOG_WAITERS] or lag > window):
            allowed = words[at + LOG_SHARE] or window // _MODEST_PART
            if lag > 2 * window or _appended_bytes(words, worker, share) >= allowed:
                return worker
        mask ^= bit
    return None


def _appended_bytes(words: memoryview, worker: int, share: LogShare) -> int:
    at = _base(worker)
    return share.appended_bytes(
        worker, words[at + LOG_ROUND], words[at + LOG_SHARE], words[at + LOG_WINDOW]
    )


def _begin_round(words: memoryview, at: int, share: int) -> None:
    words[at + LOG_ROUND] += 1
    words[at + LOG_SHARE] = share
    words[at + LOG_CONTENDERS] = 0


def _lag(words: memoryview, at: int) -> int:
    """Bytes between what a worker has shared of its walk and what is destined to it."""
    cursor: int = words[at + LOG_CURSOR]
    end: int = words[at + LOG_END]
    return end - max(cursor, words[at + LOG_START]) if cursor < end else 0


def _base(worker: int) -> int:
    return WORKER_WORDS + worker * WORDS_PER_WORKER
