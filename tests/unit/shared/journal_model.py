"""What the journal means, worked out from its description with plain sets and counters."""

from collections import Counter
from collections.abc import Iterable, Iterator

from sbus.shared.shared_memory import TABLE_EPOCH, SharedMemory
from sbus.shared.subscription_table import (
    CLIENT_GONE,
    RULE_ADDED,
    RULE_REMOVED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WORKER_RESET,
    Record,
    SubscriptionTable,
    encode_record,
)

Holding = Counter[tuple[int, int, bytes]]
"""How often each (worker, client, pattern) holds."""
Holds = set[tuple[int, int, bytes]]
"""The (worker, client, how and by which pattern) that hold publishers."""
Interest = set[tuple[int, bytes]]
"""The (worker, pattern) that some client of the worker holds."""


class Fold:
    """A reader: every record, and the edges alone."""

    def __init__(self) -> None:
        self.holding: Holding = Counter()
        self.edges: Interest = set()
        self.holds: Holds = set()

    def apply(self, record: Record) -> None:
        owner = (record.worker, record.client, record.pattern)
        if record.kind == SUBSCRIBED:
            self.holding[owner] += 1
            if record.edge:
                assert owner[::2] not in self.edges, "an interest began twice"
                self.edges.add((record.worker, record.pattern))
        elif record.kind == UNSUBSCRIBED:
            if any(held[:2] == owner[:2] for held in self.holding):
                self.holding[owner] -= 1
                assert self.holding[owner] >= 0, "more was taken back than there was"
            else:
                assert record.edge, "of a client that is gone only its edges follow"
            if record.edge:
                self.edges.remove((record.worker, record.pattern))
        elif record.kind == RULE_ADDED:
            assert owner not in self.holds, "a hold began twice"
            self.holds.add(owner)
        elif record.kind == RULE_REMOVED:
            self.holds.discard(owner)
        elif record.kind == CLIENT_GONE:
            self.holds = {held for held in self.holds if held[:2] != owner[:2]}
            for key in [key for key in self.holding if key[:2] == owner[:2]]:
                del self.holding[key]
        else:
            assert record.kind == WORKER_RESET
            for key in [key for key in self.holding if key[0] == record.worker]:
                del self.holding[key]
            self.holds = {held for held in self.holds if held[0] != record.worker}
            self.edges = {edge for edge in self.edges if edge[0] != record.worker}
        self.holding = +self.holding


def interest_of(holding: Holding) -> Interest:
    return {(worker, pattern) for worker, _, pattern in holding}


def read_all(memory: SharedMemory) -> list[Record]:
    """Every record from the first that holds, as a newcomer reads them."""
    reader = SubscriptionTable(memory)
    with memory.lock as words:
        reader.start(words)
    return list(read_on(reader, memory))


def read_on(
    reader: SubscriptionTable, memory: SharedMemory, records_max: int | None = None
) -> Iterator[Record]:
    """Every record that this reader has not read, in pieces of so many."""
    has_more = True
    while has_more:
        with memory.lock as words:
            reader.note_unread(words)
        yield from reader.read(records_max)
        with memory.lock as words:
            has_more = reader.has_unread or reader.epoch != words[TABLE_EPOCH]


def folded(records: Iterable[Record]) -> Fold:
    fold = Fold()
    for record in records:
        fold.apply(record)
    return fold


def write(table: SubscriptionTable, memory: SharedMemory, *records: Record) -> bool:
    """Append records, as an edge if one of them is."""
    with memory.lock as words:
        return table.append(
            words,
            b"".join(encode_record(record) for record in records),
            edge=any(record.edge for record in records),
            frees=all(record.kind not in (SUBSCRIBED, RULE_ADDED) for record in records),
        )


def subscribed(worker: int, client: int, pattern: bytes, *, edge: bool = True) -> Record:
    return Record(SUBSCRIBED, edge, worker, client, pattern)


def unsubscribed(worker: int, client: int, pattern: bytes, *, edge: bool = True) -> Record:
    return Record(UNSUBSCRIBED, edge, worker, client, pattern)
