"""The rows of a recording as Spark wants them: what a task does, in one of Spark's Python workers.

A recorder's batches are small where a bus is quiet, and each batch costs Spark time. So small ones
are merged, up to a size that bounds memory and keeps nothing waiting long.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sbus.pipeline.store.reader import read
from sbus.pipeline.store.schemas import GAP, conform
from sbus.pipeline.store.stored_file import Piece
from sbus.protocol.keys import SLASH, parse_pattern
from sbus.protocol.secret_keys import widened
from sbus.protocol.text import from_text
from sbus.routing.index import PatternIndex

BATCH_ROWS = 10_000
BATCH_BYTES = 4 * 1024 * 1024
_CACHED_KEYS_MAX = 100_000


def rows(
    pieces: Iterable[Piece], schema: pa.Schema, patterns: Sequence[bytes] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of these pieces whose keys match, with the columns of `schema`, in its order."""
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in _selected(pieces, schema, patterns):
        if waiting and (count + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES):
            yield _concatenated(waiting, schema)
            waiting, count, size = [], 0, 0
        waiting.append(batch)
        count += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield _concatenated(waiting, schema)


def _selected(
    pieces: Iterable[Piece], schema: pa.Schema, patterns: Sequence[bytes] | None
) -> Iterator[pa.RecordBatch]:
    key_filter = None if patterns is None else KeyFilter(patterns)
    needed = schema.names if key_filter is None else [*schema.names, "key", "kind"]
    for piece in pieces:
        for batch in read(piece, needed):
            selected = batch if key_filter is None else key_filter.select(batch)
            if selected.num_rows:
                yield conform(selected, schema)


def _concatenated(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return whole


class KeyFilter:
    """Selects the rows whose keys match a pattern, as the bus matches them.

    Each distinct key of a batch is matched once, and the result is cached. Gaps are always
    selected, since nobody knows what is missing there. An empty id in a pattern for secret messages
    stands for any id.
    """

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._index: PatternIndex[None] = PatternIndex(SLASH)
        self._cache: dict[str, bool] = {}
        for pattern in patterns:
            path = parse_pattern(widened(pattern), SLASH)
            if path is not None:
                self._index.add(path, None)

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match by their column `key`, and the gaps, by their column `kind`."""
        keys = batch["key"].dictionary_encode()
        matches = pa.array([self._matches(key) for key in keys.dictionary.to_pylist()], pa.bool_())
        selected = matches.take(keys.indices)
        return batch.filter(pc.or_(selected, pc.equal(batch["kind"], GAP)))

    def _matches(self, key: str) -> bool:
        known = self._cache.get(key)
        if known is None:
            if len(self._cache) >= _CACHED_KEYS_MAX:
                self._cache.clear()
            known = self._cache[key] = bool(self._index.match(from_text(key)))
        return known
