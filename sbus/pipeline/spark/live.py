"""A stream from the bus itself, without a recording: best effort.

What arrives is kept in the driver until Spark has planned a batch with it, and travels to the tasks
inside the plan. Nothing is on disk, so a batch that is not finished when the query ends is lost. A
row of kind GAP stands where messages are missing: for that reason, or because no query ran, or
because the bus dropped them for a reader that was too slow.

What waits is bounded; when that is full, nothing more is read, and the limits of the bus apply.
"""

import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from sbus.pipeline.spark.listener import Listener, LiveRow, gap, live_batch
from sbus.pipeline.spark.options import SourceOptions
from sbus.pipeline.spark.task_rows import conform
from sbus.pipeline.store.row_batches import RecorderIdentity

ROWS_MAX = 200_000
BYTES_MAX = 64 * 1024 * 1024
"""What may wait for Spark, and so the most in a batch; one read may exceed it."""

LiveOffset = dict[str, int]
"""`{"live": next}`: rows are numbered as they arrive, also across restarts."""
_NAME = "live"


class LiveRows:
    """The rows of a listener that are still needed.

    Invariant: the rows that wait have the offsets from `first` to `end` (exclusive).
    """

    def __init__(self, listener: Listener, first: int, rows: Sequence[LiveRow]) -> None:
        """Begins with these rows."""
        self._listener = listener
        self._first = first
        self._rows: deque[LiveRow] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._add(rows)
        listener.start(self._take)

    @property
    def end(self) -> int:
        """The next offset. Once no row waits, it raises the error that ended the listener."""
        with self._changed:
            if not self._rows:
                self._listener.check()
            return self._first + len(self._rows)

    def between(self, first: int, end: int) -> list[LiveRow]:
        with self._changed:
            return list(islice(self._rows, first - self._first, end - self._first))

    def drop(self, end: int) -> None:
        """Rows before `end` are no longer needed."""
        with self._changed:
            while self._rows and self._first < end:
                self._bytes -= _size(self._rows.popleft())
                self._first += 1
            self._changed.notify()

    def close(self) -> None:
        self._listener.announce_stop()
        with self._changed:
            self._changed.notify()
        self._listener.close()

    def _take(self, rows: Sequence[LiveRow]) -> None:
        """Returns when there is room for more."""
        with self._changed:
            self._add(rows)
            self._changed.wait_for(lambda: self._has_room() or self._listener.is_stopping)

    def _add(self, rows: Sequence[LiveRow]) -> None:
        self._rows += rows
        self._bytes += sum(map(_size, rows))

    def _has_room(self) -> bool:
        return len(self._rows) < ROWS_MAX and self._bytes < BYTES_MAX


def _size(row: LiveRow) -> int:
    return len(row.key) + len(row.value)


@dataclass
class LivePartition(InputPartition):
    """The rows themselves, as an Arrow IPC stream."""

    stream: bytes


class LiveReader(DataSourceStreamReader):
    """On the driver it holds the rows, once there are any; tasks only use `read`."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        assert options.socket is not None
        self._address = options.socket
        self._patterns = (b"",) if options.patterns is None else options.patterns
        self._rows_max = options.offsets_per_trigger_max
        self._schema = schema
        self._rows: LiveRows | None = None

    def initialOffset(self) -> LiveOffset:
        self._begin(0, [])
        return {_NAME: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: LiveOffset, limit: ReadLimit) -> LiveOffset:
        rows = self._rows or self._begin(start[_NAME], [gap(None)])
        end = rows.end
        if isinstance(limit, ReadMaxRows):
            end = min(end, start[_NAME] + limit.max_rows)
        return {_NAME: end}

    def partitions(self, start: LiveOffset, end: LiveOffset) -> Sequence[InputPartition]:
        first, last = start[_NAME], end[_NAME]
        if first == last:
            return []
        if self._rows is None:
            # An earlier run had planned this batch, and lost what was in it.
            self._begin(last, [gap(None)])
            rows = [gap(last - first)]
        else:
            rows = self._rows.between(first, last)
        batch = live_batch(rows, first, RecorderIdentity.here(self._address)).rows
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        return [LivePartition(stream.getvalue().to_pybytes())]

    def commit(self, end: LiveOffset) -> None:
        if self._rows is not None:
            self._rows.drop(end[_NAME])

    def stop(self) -> None:
        if self._rows is not None:
            self._rows.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LivePartition)
        for batch in pa.ipc.open_stream(partition.stream):
            yield conform(batch, self._schema)

    def _begin(self, first: int, rows: Sequence[LiveRow]) -> LiveRows:
        warnings.warn(
            f"sbus: a stream from the bus at {self._address} cannot be read again, what a batch "
            "that fails had is lost: record the bus and give path, or give spoolDir",
            stacklevel=2,
        )
        self._rows = LiveRows(Listener(self._address, self._patterns), first, rows)
        return self._rows
