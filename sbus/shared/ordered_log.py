"""The ordered log: one sequence of messages for all workers, in a ring of shared memory.

A worker appends a publish batch as one *log block*, in one critical section:

    log block = mask of destination workers, length, count, publisher, time, place  |  log entry ...
    log entry = mask of destination workers, packet length, key length, number  |  packet

Positions count bytes from the start of the bus; the place of a position is its remainder by the
size of the ring. A log block never wraps: one without destinations skips the rest of the ring.

Two words of each worker are the end of the last log block destined to it, and the start of the
first one since it last had nothing to walk. It walks from there, or from its own cursor if that is
further, to the end, and skips log blocks without its bit. Only a worker that has not reached its
end takes up room in the log, so an idle worker costs nothing and need not be woken.

    low-water mark = min over living workers with cursor < end of max(cursor, start), else head
    room           = size - (head - low-water mark)

The mark is found anew only when there is no room by the last one that was found, which stands in a
control word. That is safe because the mark never falls but for a dead worker (see `reap`), and then
the word falls with it:

    LOG_LOW <= low-water mark

A worker that finds no room joins the *waiting* set. While that is not empty no worker appends; the
worker that raises the low-water mark so far that a quarter of the log is free wakes all of them. So

    waiting != {}  =>  room < size / 4

holds between critical sections, and a waiting worker is overtaken for no longer than it takes to
free that quarter.

Bytes say little about work: a hundred of them may be one delivery or a thousand. So every worker
also has a *window*, the bytes that it walks in a given time as it has measured. No worker appends
for one whose lag exceeds its window, with one exception (see *round* below):

    lag(worker) = max(end - max(cursor, start), entries * entry bytes) while cursor < end, else 0
    waiters(worker) != {}  =>  lag > window / 2, when that worker last shared its cursor

That bounds the age of a message when it is delivered, and how long a walk occupies a worker.
`entries` are the log entries that the worker has not walked. What each counts for at least, its
`entry bytes`, makes a window full with as many of them as can be walked in a longer time when no
route is cached and each message goes to as many clients as any: such messages may follow those by
which the window was measured. A log block of several messages takes half a window at most.

When the waiters are released, a *round* of that worker ends. If several users waited, they share
half a window of the next round equally; a user that has used less than its share need not wait,
even if others do, until the lag is two windows. So a flood fills the log only for its own user.

Every method that takes `words` runs under the lock.
"""

from collections.abc import Iterator

from sbus.compiled import LogRecord
from sbus.shared.log_block import (
    BLOCK,
    HAND_OVER,
    PLACE,
    PLACE_AT,
    LogBlock,
    LogStatistics,
    WalkedBlock,
    block_at,
    blocks_between,
    entry_numbers,
    walk_piece,
)
from sbus.shared.log_share import LogShare
from sbus.shared.log_window import (
    appended_bytes,
    base_of,
    begin_round,
    lag_of,
    late_destination,
    parts_of,
    weight_of,
)
from sbus.shared.shared_memory import (
    ALIVE,
    LOG_CONTENDERS,
    LOG_CURSOR,
    LOG_END,
    LOG_ENTRIES,
    LOG_ENTRY_BYTES,
    LOG_HEAD,
    LOG_LOW,
    LOG_ROUND,
    LOG_START,
    LOG_WAITERS,
    LOG_WALKED,
    LOG_WINDOW,
    SLEEPING,
    WAITING,
    SharedMemory,
)

WINDOW_SECONDS = 0.001
"""Work that may wait for a worker: more adds latency; with less, the worker runs out of work when
another process gets its CPU for a moment."""
WINDOW_BYTES_MIN = 256
FIRST_WINDOW_BYTES = 16 * 1024
"""Of a worker that has walked nothing yet: some hundred small messages. It walks these bytes in
about `WINDOW_SECONDS`, and what its log entries may take beyond that is counted beside them."""
_PIECE_BYTES_MAX = 2048
"""Some messages of a few bytes: copying them costs less than another critical section."""
_WINDOW_STEPS_MAX = 75_000
"""For as many log entries as fill a window: 15 ms if no route is cached."""
_NO_PUBLISHER = (0,) * 9
"""Nor a count or a place, in the header of what skips the rest of the ring."""
_PACE_MEMORY = 0.8
"""The weight of earlier walks in a worker's measured pace, against one more walk."""


class OrderedLog(LogRecord):
    """One process's view of the log; `worker` is None in a process that does not walk it."""

    def __init__(self, memory: SharedMemory, worker: int | None = None) -> None:
        self._memory = memory
        self._map = memory.map
        self._offset = memory.log_offset
        self._size = memory.log_bytes
        self._workers = memory.workers
        self.worker = worker
        self._bit = 0 if worker is None else 1 << worker
        self._own = 0 if worker is None else base_of(worker)
        self.cursor = 0
        """How far this worker has walked; `share_cursor` shares it."""
        self.entries = 0
        """The log entries in all log blocks that were destined to it up to there."""
        self.window = min(FIRST_WINDOW_BYTES, self._size // 2)
        self.entry_bytes = 0
        self._entry_steps = 0
        self._walked_bytes = 0.0
        self._walked_seconds = 0.0
        self.position = 0
        """Of the log block that `walk` or `walk_piece` is at."""
        self.is_caught_up = False
        """Nothing was left to walk in the last critical section, and this worker will be woken."""

    # -- under the lock ------------------------------------------------------------------------
    def resume(self, words: memoryview, walked: int) -> bool:
        """Begin to serve where a predecessor had walked to, with all entries counted as walked;
        False when the log has not kept what came then."""
        start = max(walked, words[self._own + LOG_START])
        if not words[ALIVE] & self._bit or not self._has_kept(words, start):
            return False
        self.cursor = walked
        self.entries = words[self._own + LOG_ENTRIES]
        return True

    def start(self, words: memoryview) -> None:
        """Begin to serve: skip what was destined to an earlier worker of this number."""
        self.cursor = words[LOG_HEAD]
        words[self._own + LOG_CURSOR] = self.cursor
        words[self._own + LOG_END] = self.cursor
        self.entries = words[self._own + LOG_WALKED] = words[self._own + LOG_ENTRIES]
        words[self._own + LOG_WINDOW] = self.window
        words[ALIVE] |= self._bit

    def parts_of(self, words: memoryview, log_block: LogBlock) -> int:
        """Into how many log blocks to divide this one, so that none occupies a destination for too
        long."""
        return parts_of(words, log_block.mask, len(log_block.data), log_block.count)

    def append(
        self, words: memoryview, log_block: LogBlock, share: LogShare, order_place: int = 0
    ) -> int:
        """Append a log block of the user who has `share`, with this place in the total order;
        returns the workers to wake, or -1 when it has to wait: then this worker waits for a
        destination or for room, and will be woken."""
        mask = log_block.mask & words[ALIVE]
        if (late := late_destination(words, mask, share)) is not None:
            at = base_of(late)
            words[at + LOG_WAITERS] |= self._bit
            words[at + LOG_CONTENDERS] += share.contends(late, words[at + LOG_ROUND])
            return -1
        head = words[LOG_HEAD]
        data = log_block.data
        place = head % self._size
        skip = self._size - place if place + len(data) > self._size else 0
        if words[WAITING] or not self._has_room(words, head + skip + len(data)):
            words[WAITING] |= self._bit
            return -1
        if skip:
            BLOCK.pack_into(self._map, self._offset + place, 0, skip, *_NO_PUBLISHER)
            head += skip
            place = 0
        at = self._offset + place
        self._map[at : at + len(data)] = data
        PLACE.pack_into(self._map, at + PLACE_AT, order_place)
        words[LOG_HEAD] = head + len(data)
        return self._destine(words, log_block, head, share)

    def append_if_walked(self, words: memoryview, log_block: LogBlock, share: LogShare) -> int:
        """Append a log block if everything before it that is destined to this worker has been
        walked, and one of its destinations lives; the result is that of `append`, or -1."""
        if words[self._own + LOG_END] > self.cursor or not log_block.mask & words[ALIVE]:
            return -1
        return self.append(words, log_block, share)

    def _has_room(self, words: memoryview, end: int) -> bool:
        if end - words[LOG_LOW] > self._size:
            words[LOG_LOW] = self._low_water_mark(words)
        return bool(end - words[LOG_LOW] <= self._size)

    def _low_water_mark(self, words: memoryview) -> int:
        low: int = words[LOG_HEAD]
        alive = words[ALIVE]
        for worker in range(self._workers):
            at = base_of(worker)
            cursor = words[at + LOG_CURSOR]
            if alive >> worker & 1 and cursor < words[at + LOG_END]:
                low = min(low, max(cursor, words[at + LOG_START]))
        return low

    def _destine(self, words: memoryview, log_block: LogBlock, start: int, share: LogShare) -> int:
        mask, size = log_block.mask & words[ALIVE], len(log_block.data)
        woken: int = mask & words[SLEEPING]
        words[SLEEPING] &= ~woken
        while mask:
            bit = mask & -mask
            worker = bit.bit_length() - 1
            at = base_of(worker)
            if words[at + LOG_CURSOR] >= words[at + LOG_END]:
                words[at + LOG_START] = start
                begin_round(words, at, 0)
            words[at + LOG_END] = start + size
            words[at + LOG_ENTRIES] += log_block.count
            appended_bytes(words, worker, share)
            share.add(worker, weight_of(words, at, size, log_block.count))
            mask ^= bit
        return woken

    def share_cursor(self, words: memoryview) -> int:
        """Share how far this worker has walked; returns the workers to wake."""
        own = self._own
        words[own + LOG_CURSOR] = self.cursor
        words[own + LOG_WALKED] = self.entries
        words[own + LOG_WINDOW] = self.window
        words[own + LOG_ENTRY_BYTES] = self.entry_bytes
        woken = 0
        if words[own + LOG_WAITERS] and lag_of(words, own) <= self.window // 2:
            woken = words[own + LOG_WAITERS]
            words[own + LOG_WAITERS] = 0
            contenders = words[own + LOG_CONTENDERS]
            begin_round(words, own, self.window // 2 // contenders if contenders > 1 else 0)
        return woken | self.release_waiting(words)

    def release_waiting(self, words: memoryview) -> int:
        """Empty the waiting set if there is room again; returns the workers to wake."""
        waiting: int = words[WAITING]
        if waiting:
            words[LOG_LOW] = self._low_water_mark(words)
            if words[LOG_HEAD] - words[LOG_LOW] > self._size - self._size // 4:
                return 0
            words[WAITING] = 0
        return waiting

    def destined_end(self, words: memoryview) -> int:
        """The end of the last log block destined to this worker; moves the cursor to the first."""
        end: int = words[self._own + LOG_END]
        if self.cursor < end:
            self.cursor = max(self.cursor, words[self._own + LOG_START])
        return end

    def take_piece(self, words: memoryview, end: int) -> bytes:
        """Copy what is left to walk, if that is little, else return b"". What was copied counts as
        walked, so this worker needs no further critical section before it sleeps."""
        size = end - self.cursor
        if not 0 < size <= _PIECE_BYTES_MAX:
            return b""
        place = self.cursor % self._size
        at = self._offset + place
        piece = self._map[at : at + min(size, self._size - place)]
        if len(piece) < size:
            piece += self._map[self._offset : self._offset + size - len(piece)]
        self.cursor = end
        self.entries = words[self._own + LOG_ENTRIES]
        return piece

    def ask_to_be_woken(self, words: memoryview) -> None:
        """When something is destined to this worker, if there is nothing to walk now."""
        self.is_caught_up = self.cursor >= words[self._own + LOG_END]
        if self.is_caught_up:
            words[SLEEPING] |= self._bit

    def reap(self, words: memoryview, worker: int, walked: int | None = None) -> int:
        """Release those that waited for a dead worker; returns the workers to wake. What is
        destined to it is kept for a successor if it had `walked` so far."""
        keep = ~(1 << worker)
        for word in (SLEEPING, WAITING):
            words[word] &= keep
        for other in range(self._workers):
            words[base_of(other) + LOG_WAITERS] &= keep
        at = base_of(worker)
        woken = 0
        if walked is not None and self._keep_copied(words, at, walked):
            words[at + LOG_CURSOR] = walked
            if walked >= words[at + LOG_END]:
                words[at + LOG_WALKED] = words[at + LOG_ENTRIES]
        else:
            words[ALIVE] &= keep
            words[at + LOG_CURSOR] = words[at + LOG_END]
            woken = words[at + LOG_WAITERS]
            words[at + LOG_WAITERS] = 0
        words[LOG_LOW] = self._low_water_mark(words)
        return woken | self.release_waiting(words)

    def _keep_copied(self, words: memoryview, at: int, walked: int) -> bool:
        """Keep what a dead worker, with its words there, had copied before the walk (see
        `take_piece`); False if some of that may be overwritten by now, maybe in a critical section
        whose process died."""
        if walked >= words[at + LOG_CURSOR]:
            return True
        words[at + LOG_START] = min(words[at + LOG_START], walked)
        written_max = words[LOG_HEAD] + self._size // 4  # see `check_log_size`
        return bool(written_max - max(words[at + LOG_START], walked) <= self._size)

    def _has_kept(self, words: memoryview, start: int) -> bool:
        """Whether the log has everything from here on that is destined to this worker."""
        return bool(start >= words[self._own + LOG_END] or words[LOG_HEAD] - start <= self._size)

    def statistics(self, words: memoryview) -> LogStatistics:
        head = words[LOG_HEAD]
        return LogStatistics(head, head - self._low_water_mark(words), self._size, words[WAITING])

    def check_invariants(self, words: memoryview) -> None:
        """Raise AssertionError where the formulas at the top of this module do not hold."""
        head = words[LOG_HEAD]
        low = self._low_water_mark(words)
        used = head - low
        assert 0 <= used <= self._size
        assert words[LOG_LOW] <= low
        assert not words[WAITING] or self._size - used < self._size // 4
        assert not words[SLEEPING] & ~words[ALIVE]
        for worker in range(self._workers):
            at = base_of(worker)
            assert words[at + LOG_START] <= words[at + LOG_END] <= head
            assert words[at + LOG_CURSOR] <= head
            assert words[at + LOG_WALKED] <= words[at + LOG_ENTRIES]
            if words[ALIVE] >> worker & 1 and words[at + LOG_CURSOR] >= words[at + LOG_END]:
                assert words[at + LOG_WALKED] == words[at + LOG_ENTRIES]

    def note_pace(self, walked_bytes: int, seconds: float) -> None:
        """Measure how fast this worker walks; `share_cursor` shares the resulting window."""
        self._walked_bytes = self._walked_bytes * _PACE_MEMORY + walked_bytes
        self._walked_seconds = self._walked_seconds * _PACE_MEMORY + seconds
        window = int(self._walked_bytes * WINDOW_SECONDS / max(self._walked_seconds, 1e-9))
        self.window = min(max(window, WINDOW_BYTES_MIN), self._size // 2)
        self.entry_bytes = self.window * self._entry_steps // _WINDOW_STEPS_MAX

    def bytes_walked_in(self, seconds: float) -> float:
        """What this worker walks in this time on average, as its window tells."""
        return self.window * seconds / WINDOW_SECONDS

    def set_entry_steps(self, steps: int) -> None:
        """A log entry for this worker may take so many steps of a match, with its deliveries;
        `share_cursor` shares what it counts for then."""
        self._entry_steps = steps
        self.entry_bytes = self.window * steps // _WINDOW_STEPS_MAX

    # -- without the lock ----------------------------------------------------------------------
    def look_ahead(self, end: int) -> tuple[int, set[int]]:
        """How many log entries are left to walk to `end`, and the clients that are handed over in
        them. The log keeps them until this worker has walked."""
        ring = memoryview(self._map)[self._offset : self._offset + self._size]
        entries, arrivals = 0, set()
        for count, client, key in blocks_between(ring, self.cursor, end, self._bit):
            entries += count
            if key == HAND_OVER:
                arrivals.add(client)
        return entries, arrivals

    def walk(self, end: int) -> Iterator[WalkedBlock]:
        """Walk to `end`. The cursor passes a log block when the next one is requested."""
        source, offset, size, bit = self._map, self._offset, self._size, self._bit
        while self.cursor < end:
            at = offset + self.cursor % size
            length, count, block = block_at(source, at, bit)
            if block is not None:
                self.position = self.cursor
                yield block
                self.entries += count
            self.cursor += length

    def walk_piece(self, piece: bytes) -> Iterator[WalkedBlock]:
        """As `walk`, over the end of what `take_piece` returned."""
        start = self.cursor - len(piece)
        for at, block in walk_piece(piece, self._bit):
            self.position = start + at
            yield block

    def publisher(self) -> int:
        """The client that published the block at the cursor."""
        return int(BLOCK.unpack_from(self._map, self._offset + self.cursor % self._size)[3])

    def entry_numbers(self) -> list[int]:
        """Which entries of the log block at the cursor, from 0, are destined to this worker."""
        return entry_numbers(self._map, self._offset + self.cursor % self._size, self._bit)
