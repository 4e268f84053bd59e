"""The subscription table: all subscriptions, as a journal in shared memory.

Every change is one record, appended under the lock; every worker that publishes reads the records
that are new to it and keeps an index of its own. A record that begins or ends a worker's interest
in a pattern is an *edge*: it concerns the other workers, so it moves the generation word, which
they compare before they place a publish batch. Other records (a worker's second client with the
same pattern) matter only when the clients of a worker are reconstructed.

    record = length, kind, edge, worker, client | pattern [NUL, the client's own spelling of it]

There are two arenas. Compaction writes the records that are still valid into the spare one, piece
by piece and without the lock, then copies what was journalled meanwhile and flips the epoch in one
critical section. A reader of the old arena reads it to its end and goes on at TABLE_BASE of the new
one. The next compaction waits until every living worker has done so, because it overwrites the
arena that they read.

    state(reader) = fold(records[0 : TAIL])  in the arena of its epoch
    records below TAIL never change while a reader may be in that arena

When a worker has died, one record ends all that its clients had subscribed to. A reader that meets
it reads the records of the dead worker once more, piece by piece, and takes each of them back.
"""

import struct
from collections.abc import Iterator
from itertools import islice

import msgspec

from sbus.compiled import TableRecord
from sbus.shared.shared_memory import (
    ALIVE,
    COMPACTION_WANTED,
    EPOCH_SEEN,
    SLEEPING,
    TABLE_BASE,
    TABLE_EPOCH,
    TABLE_GENERATION,
    TABLE_PREVIOUS_TAIL,
    TABLE_TAIL,
    WORDS_PER_WORKER,
    WORKER_WORDS,
    SharedMemory,
)
from sbus.shared.table_share import TableShare

SUBSCRIBED = 1
UNSUBSCRIBED = 2
CLIENT_GONE = 3
WORKER_RESET = 4
"""A new worker has this number: the subscriptions of the former one are gone."""
RULE_ADDED = 5
"""The client's back-pressure rule applies to this pattern, which the client has. The workers encode
the rule in front of the pattern."""
RULE_REMOVED = 6
NAME_TAKEN = 7
"""The client has a name. It has that until `NAME_GIVEN_BACK`, whichever worker serves it, and the
worker of the record may have gone."""
NAME_GIVEN_BACK = 8
NAME_KINDS = (NAME_TAKEN, NAME_GIVEN_BACK)
_END_OF = {SUBSCRIBED: UNSUBSCRIBED, RULE_ADDED: RULE_REMOVED}

RECORD = struct.Struct("<IBBHQ")  # length, kind, edge, worker, client: 16 bytes
_SMALL_BYTES = 8 * 1024
_WAKE_BYTES = 256 * 1024
"""Sleeping workers are woken this often, so that none has much to read at once."""
COMPACTION_GROWTH_DIVISOR = 8
"""Compaction is wanted once the journal has grown by this part of an arena and has doubled, or has
reached the last such part, which is a reserve for records that remove subscriptions."""


class Record(msgspec.Struct, frozen=True):
    """One change; `edge`: it begins or ends the worker's interest in this pattern. `client` is 0
    where a worker's interest is not, or no more, one of its clients."""

    kind: int
    edge: bool
    worker: int
    client: int
    pattern: bytes = b""


def encode_record(record: Record) -> bytes:
    length = RECORD.size + len(record.pattern)
    header = RECORD.pack(length, record.kind, record.edge, record.worker, record.client)
    return header + record.pattern


class TableStatistics(msgspec.Struct, frozen=True):
    """How full the table is; bytes of the arena in use."""

    epoch: int
    used_bytes: int
    size_bytes: int


class SubscriptionTable(TableRecord):
    """One process's view of the journal: it appends, and reads on from a position."""

    def __init__(self, memory: SharedMemory, worker: int | None = None) -> None:
        self._memory = memory
        self._map = memory.map
        self._size = memory.arena_bytes
        self._worker = worker
        self._own = None if worker is None else WORKER_WORDS + worker * WORDS_PER_WORKER
        self.epoch = 0
        self.position = 0
        self._end = 0
        """How far it may read now."""
        self._must_leave_arena = False
        """What is left in an arena that is not in use any more is read first."""
        self._reset: tuple[int, int] | None = None
        """Whose records are read once more, and where the reset ends that is the reason."""
        self._reset_ends: dict[int, int] = {}
        """Of the last reset of each worker in this arena."""
        self._has_begun = False

    # -- under the lock ------------------------------------------------------------------------
    def start(self, words: memoryview) -> None:
        """Begin to read, at the first record."""
        self._enter_arena(words[TABLE_EPOCH], 0)
        self._end = 0
        self._must_leave_arena = False
        if self._own is not None:
            words[self._own + EPOCH_SEEN] = self.epoch

    def is_current(self, words: memoryview) -> bool:
        """Whether everything that concerns this worker has been read."""
        return words[TABLE_EPOCH] == self.epoch and words[TABLE_GENERATION] <= self.position

    def follow(self, words: memoryview) -> bool:
        """Whether there is more to read for a process that has begun to.

        A worker begins with the first message that it publishes. Until then it needs nothing of the
        table, and only leaves an arena that is not in use any more.
        """
        if self._has_begun:
            return self.has_unread or not self.is_current(words)
        if self.epoch != words[TABLE_EPOCH]:
            self.start(words)
        return False

    def append(
        self,
        words: memoryview,
        data: bytes,
        share: TableShare | None = None,
        *,
        edge: bool,
        frees: bool = False,
    ) -> bool:
        """Append encoded records, with `edge` if one of them is one, and with `frees` if they only
        remove subscriptions, or replace records where the table `has_reserve`. A change that a user
        asks for counts in its `share`.

        False, and nothing appended, when there is no room before the next compaction, or none in
        that share. Removals may use a reserve, because nothing else makes room in a full table.
        """
        if not self.has_room(words, len(data), share, frees=frees):
            return False
        epoch, tail = words[TABLE_EPOCH], words[TABLE_TAIL]
        end = tail + len(data)
        if share is not None:
            share.add(epoch, len(data))
        at = self._memory.arena_offsets[epoch & 1] + tail
        self._map[at : at + len(data)] = data
        if self.position == tail and self.epoch == epoch:
            self.position = end
        words[TABLE_TAIL] = end
        if tail // _WAKE_BYTES != end // _WAKE_BYTES:
            self._memory.wake(words[SLEEPING])
        if edge:
            words[TABLE_GENERATION] = end
        return True

    def has_room(
        self, words: memoryview, more_bytes: int, share: TableShare | None, *, frees: bool
    ) -> bool:
        """Whether `append` has room for so much; if not, or if the journal has grown much, it is
        compacted."""
        end = words[TABLE_TAIL] + more_bytes
        least = self._size // COMPACTION_GROWTH_DIVISOR
        common = self._size - least
        left_bytes = (self._size if frees else common) - end
        used_bytes = 0 if share is None else share.used_bytes(words[TABLE_EPOCH])
        has_grown = end > min(max(2 * words[TABLE_BASE], least), common)
        has_room = bool(left_bytes >= used_bytes)
        if (has_grown or not has_room) and not words[COMPACTION_WANTED]:
            words[COMPACTION_WANTED] = 1
            self._memory.wake_front()
        return has_room

    def is_full(self, words: memoryview, more_bytes: int) -> bool:
        """Whether there is no room for so much more, and the valid records fill the arena, so that
        a compaction would not help."""
        least = self._size // COMPACTION_GROWTH_DIVISOR
        has_room = words[TABLE_TAIL] + more_bytes <= self._size - least
        return bool(not has_room and words[TABLE_BASE] > self._size - 2 * least)

    def has_reserve(self, words: memoryview) -> bool:
        """Whether records that replace others, and may be longer, leave enough of the reserve for
        records that remove subscriptions."""
        return bool(words[TABLE_BASE] <= self._size - self._size // (2 * COMPACTION_GROWTH_DIVISOR))

    def note_unread(self, words: memoryview) -> None:
        """Find out how far `read` may read: to the end of the arena that this process reads, and
        then on in the one in use."""
        self._has_begun = True
        epoch = words[TABLE_EPOCH]
        if epoch != self.epoch and self.position >= words[TABLE_PREVIOUS_TAIL]:
            self._enter_arena(epoch, words[TABLE_BASE])
        self._must_leave_arena = epoch != self.epoch
        self._end = words[TABLE_PREVIOUS_TAIL if self._must_leave_arena else TABLE_TAIL]

    def _enter_arena(self, epoch: int, position: int) -> None:
        self.epoch = epoch
        self.position = position
        self._reset = None
        self._reset_ends.clear()

    def unread_is_small(self, words: memoryview) -> bool:
        """Whether the unread records can be read under the lock: some hundreds, a millisecond."""
        same_arena = words[TABLE_EPOCH] == self.epoch
        return same_arena and words[TABLE_TAIL] - self.position <= _SMALL_BYTES

    def share_epoch(self, words: memoryview) -> None:
        """Share, after reading, which arena this worker reads."""
        if self._own is not None:
            words[self._own + EPOCH_SEEN] = self.epoch

    def statistics(self, words: memoryview) -> TableStatistics:
        return TableStatistics(words[TABLE_EPOCH], words[TABLE_TAIL], self._size)

    # -- without the lock ----------------------------------------------------------------------
    def read_own(self, worker: int, end: int) -> Iterator[Record]:
        """The records of a worker and all about names, from the first one to `end`, in the arena
        that is read."""
        at = self._memory.arena_offsets[self.epoch & 1]
        return read_records(self._memory, at, at + end, only_of=worker)

    @property
    def has_unread(self) -> bool:
        """Whether `read` has not come to the end yet that `note_unread` found, or is to go on in
        the arena in use."""
        return self.position < self._end or self._must_leave_arena

    def read(self, records_max: int | None = None) -> Iterator[Record]:
        """Read the next records, so many at most."""
        at = self._memory.arena_offsets[self.epoch & 1]
        unread = read_records(self._memory, at + self.position, at + self._end)
        for record in islice(unread, records_max):
            self.position += RECORD.size + len(record.pattern)
            yield record

    def read_changes(self, records_max: int) -> Iterator[Record]:
        """As `read`, looking at so many records at most; but before the reset of a worker comes the
        end of what it had."""
        while records_max and self.position < self._end:
            for record in self.read(records_max):
                records_max -= 1
                position = self.position
                change = self._change_of(record)
                if change is not None:
                    yield change
                elif self.position < position:
                    break

    def _change_of(self, record: Record) -> Record | None:
        """What this record, which was read last, means now; it may make the reader go back."""
        if self._reset is None:
            if record.kind != WORKER_RESET or record.worker == self._worker:
                return record
            self._reset = record.worker, self.position
            begin = self._reset_ends.get(record.worker, 0)
            self._reset_ends[record.worker], self.position = self.position, begin
            return None
        worker, end = self._reset
        if self.position == end:
            self._reset = None
            return record
        if record.worker == worker and record.kind in _END_OF:
            return msgspec.structs.replace(record, kind=_END_OF[record.kind], edge=True)
        return None


def read_records(
    memory: SharedMemory, start: int, end: int, only_of: int | None = None
) -> Iterator[Record]:
    """The records between two offsets of the map, of all workers, or of one and about names. Raises
    RuntimeError where something else than a record was read, so that every loop over them ends."""
    source = memory.map
    while start < end:
        length, kind, edge, worker, client = RECORD.unpack_from(source, start)
        if length < RECORD.size:
            raise RuntimeError(f"the subscription table has a record of {length} bytes")
        if only_of is None or worker == only_of or kind in NAME_KINDS:
            pattern = source[start + RECORD.size : start + length]
            yield Record(kind, bool(edge), worker, client, pattern)
        start += length


def shared_spelling(journalled: bytes) -> bytes:
    """The part of a journalled pattern by which indices know it."""
    return journalled.partition(b"\0")[0]


def own_spelling(journalled: bytes) -> bytes:
    """The pattern as its client wrote it."""
    return journalled.rpartition(b"\0")[2]


def all_have_read(memory: SharedMemory, words: memoryview) -> bool:
    """Whether every living worker reads the arena in use, so that the other one is free."""
    epoch = words[TABLE_EPOCH]
    alive = words[ALIVE]
    return all(
        words[WORKER_WORDS + worker * WORDS_PER_WORKER + EPOCH_SEEN] == epoch
        for worker in range(memory.workers)
        if alive >> worker & 1
    )
