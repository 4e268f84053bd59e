"""Compaction of the subscription table: rewriting it, without obsolete records, in the spare arena.

The front drives a `Compaction`: `step` does a bounded piece of work without the lock and says
whether another is needed; `finish` runs under the lock, copies what was journalled meanwhile, and
flips the arenas. No process reads the new arena before the flip, so a compaction may be abandoned
at any instant.

    image = one SUBSCRIBED record for each subscription at the snapshot, with its edges,
            one more, of no client, for each interest of a worker that outlives its clients,
            one RULE_ADDED record for each pattern with a back-pressure rule,
            one NAME_TAKEN record for each name
    new arena = image + records journalled after the snapshot, byte for byte
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Set

from sbus.shared import shared_memory, subscription_table
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.subscription_table import (
    Record,
    encode_record,
    read_records,
    shared_spelling,
)

STEP_RECORDS = 1_000
"""Records read or written in one step: about a millisecond."""
COPY_BYTES = 1024 * 1024
"""Of the journal, copied in one step: about a millisecond."""
FINISH_BYTES_MAX = 64 * 1024
"""The most that is copied under the lock."""


class LiveTable:
    """The result of a sequence of records: the patterns of each client of each worker, those that
    hold publishers, and those that messages are sent to each worker for.

    A worker takes its interest in the patterns of a client that has left back piece by piece, and
    may die before it is done.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[int, int], Counter[bytes]] = {}
        self._rules: dict[tuple[int, int], set[bytes]] = {}
        self._interest: dict[int, set[bytes]] = {}
        self.names: dict[int, bytes] = {}
        """What the record says of each client's name (`name_records`)."""

    def patterns(self, worker: int, client: int) -> Mapping[bytes, int]:
        """A client's patterns as they are journalled, each with its number of occurrences."""
        return self._clients.get((worker, client), {})

    def rules(self, worker: int, client: int) -> Set[bytes]:
        """A client's back-pressure rules, each with a pattern behind it."""
        return self._rules.get((worker, client), set())

    def interest(self, worker: int) -> Set[bytes]:
        """The patterns, in their shared spelling, that other workers send this one messages for."""
        return self._interest.get(worker, set())

    def owners(self) -> set[tuple[int, int]]:
        """Workers and their clients that have patterns or rules."""
        return self._clients.keys() | self._rules.keys()

    def apply(self, record: Record) -> None:
        owner = (record.worker, record.client)
        if record.kind == subscription_table.SUBSCRIBED:
            if record.client:
                self._clients.setdefault(owner, Counter())[record.pattern] += 1
            if record.edge:
                shared = shared_spelling(record.pattern)
                self._interest.setdefault(record.worker, set()).add(shared)
        elif record.kind == subscription_table.UNSUBSCRIBED:
            self._take_back(owner, record.pattern)
            if record.edge:
                self._interest.get(record.worker, set()).discard(shared_spelling(record.pattern))
        elif record.kind == subscription_table.RULE_ADDED:
            self._rules.setdefault(owner, set()).add(record.pattern)
        elif record.kind == subscription_table.RULE_REMOVED:
            self._rules.get(owner, set()).discard(record.pattern)
        elif record.kind == subscription_table.CLIENT_GONE:
            self._clients.pop(owner, None)
            self._rules.pop(owner, None)
        elif record.kind == subscription_table.NAME_TAKEN:
            self.names[record.client] = record.pattern
        elif record.kind == subscription_table.NAME_GIVEN_BACK:
            self.names.pop(record.client, None)
        else:
            for gone in [key for key in self._clients if key[0] == record.worker]:
                del self._clients[gone]
            for gone in [key for key in self._rules if key[0] == record.worker]:
                del self._rules[gone]
            self._interest.pop(record.worker, None)

    def _take_back(self, owner: tuple[int, int], pattern: bytes) -> None:
        patterns = self._clients.get(owner)
        if patterns is None:
            return  # the client's own record has removed it already
        patterns[pattern] -= 1
        if not patterns[pattern]:
            del patterns[pattern]
            if not patterns:
                del self._clients[owner]

    def records(self) -> Iterator[Record]:
        """The shortest journal with the same result."""
        known: set[tuple[int, bytes]] = set()
        for (worker, client), patterns in self._clients.items():
            for pattern, count in patterns.items():
                shared = shared_spelling(pattern)
                for _ in range(count):
                    edge = (worker, shared) not in known
                    known.add((worker, shared))
                    yield Record(subscription_table.SUBSCRIBED, edge, worker, client, pattern)
        for worker, interest in self._interest.items():
            for pattern in interest:
                if (worker, pattern) not in known:
                    yield Record(subscription_table.SUBSCRIBED, True, worker, 0, pattern)
        for (worker, client), rules in self._rules.items():
            for rule in rules:
                yield Record(subscription_table.RULE_ADDED, True, worker, client, rule)
        for client, name in self.names.items():
            yield Record(subscription_table.NAME_TAKEN, True, 0, client, name)


class Compaction:
    """One compaction. Begin it under the lock, and only when `all_have_read`."""

    def __init__(self, memory: SharedMemory, words: memoryview) -> None:
        self._memory = memory
        self._epoch = words[shared_memory.TABLE_EPOCH]
        self._source = memory.arena_offsets[self._epoch & 1]
        self._target = memory.arena_offsets[1 - (self._epoch & 1)]
        self._copied = words[shared_memory.TABLE_TAIL]
        self._written = 0
        self._work = self._steps()

    def step(self) -> bool:
        """Write the next piece of the image; False once it is complete."""
        return next(self._work, None) is not None

    def _steps(self) -> Iterator[bool]:
        live = LiveTable()
        records = read_records(self._memory, self._source, self._source + self._copied)
        for number, record in enumerate(records, 1):
            live.apply(record)
            if number % STEP_RECORDS == 0:
                yield True
        image: list[bytes] = []
        for record in live.records():
            image.append(encode_record(record))
            if len(image) == STEP_RECORDS:
                self._write(b"".join(image))
                image.clear()
                yield True
        self._write(b"".join(image))

    def _write(self, data: bytes) -> None:
        at = self._target + self._written
        self._memory.map[at : at + len(data)] = data
        self._written += len(data)

    def copy_journal(self, tail: int) -> bool:
        """Copy a piece of what was journalled up to `tail`; False once all of it is copied."""
        end = min(tail, self._copied + COPY_BYTES)
        source = self._memory.map
        self._write(source[self._source + self._copied : self._source + end])
        self._copied = end
        return end < tail

    def finish(self, words: memoryview) -> bool:
        """Flip the arenas; False when too much is left to copy."""
        tail = words[shared_memory.TABLE_TAIL]
        if tail - self._copied > FINISH_BYTES_MAX:
            return False
        self.copy_journal(tail)
        words[shared_memory.TABLE_PREVIOUS_TAIL] = tail
        words[shared_memory.TABLE_BASE] = self._written
        words[shared_memory.TABLE_TAIL] = self._written
        words[shared_memory.TABLE_GENERATION] = self._written
        words[shared_memory.TABLE_EPOCH] = self._epoch + 1
        words[shared_memory.COMPACTION_WANTED] = 0
        return True
