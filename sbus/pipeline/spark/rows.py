"""The rows of a recording as Spark wants them: what a task does.

Batches as they were flushed are small where a bus is quiet, and each costs Spark something; so
small ones are put together, up to a size at which nothing waits long and memory is bounded.

Runs in Spark's Python workers and needs nothing but the files.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from sbus.pipeline.recording import Piece, read
from sbus.pipeline.spark.key_filter import KeyFilter

BATCH_ROWS = 10_000
BATCH_BYTES = 4 * 1024 * 1024


def rows(
    pieces: Iterable[Piece], schema: pa.Schema, patterns: Sequence[bytes] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of these pieces whose keys match, with the columns of `schema`, in its order."""
    yield from _gathered(_selected(pieces, schema, patterns), schema)


def _selected(
    pieces: Iterable[Piece], schema: pa.Schema, patterns: Sequence[bytes] | None
) -> Iterator[pa.RecordBatch]:
    key_filter = None if patterns is None else KeyFilter(patterns)
    needed = schema.names if key_filter is None else [*schema.names, "key", "kind"]
    for piece in pieces:
        for batch in read(piece, needed):
            selected = batch if key_filter is None else key_filter.of(batch)
            if selected.num_rows:
                yield conform(selected, schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns that `schema` names, as it says."""
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def _gathered(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if waiting and (count + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES):
            yield _joined(waiting, schema)
            waiting, count, size = [], 0, 0
        waiting.append(batch)
        count += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield _joined(waiting, schema)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return whole
