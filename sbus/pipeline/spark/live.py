"""A stream from the bus itself, without a recording: best effort.

What arrives is kept in the driver until Spark has planned a batch with it, and goes to the tasks
inside the plan. Nothing of it is on disk: what was in a batch that did not get through when the
query ended cannot be had again. Where messages are missing, for that, or while no query ran, or
because the bus dropped them for a reader that was too slow, there is a row of kind GAP.

What waits is bounded; when it is full, nothing more is read, and the bus's own limits take over.
"""

import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from sbus.pipeline.spark.listening import Item, Listener
from sbus.pipeline.spark.live_rows import LiveRow, batch_of, gap, origin_of, row_of
from sbus.pipeline.spark.options import SourceOptions
from sbus.pipeline.spark.rows import conform

ROWS_MAX = 200_000
BYTES_MAX = 64 * 1024 * 1024
"""What may wait for Spark, and so the most in a batch; exceeded by what one read took."""

LiveOffset = dict[str, int]
"""`{"live": next}`: rows are numbered as they arrive, and on from there after a restart."""
_NAME = "live"


class Receiver:
    """What a listener has heard, until it is not needed any more.

    Invariant: the rows that wait have the offsets from `first` to `end` (exclusive).
    """

    def __init__(self, listener: Listener, first: int, rows: Iterable[LiveRow]) -> None:
        """Starts with these rows, and then goes on with what is heard."""
        self._listener = listener
        self._first = first
        self._rows: deque[LiveRow] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._add(rows)
        listener.start(self._take)

    @property
    def end(self) -> int:
        """The next offset. Raises why nothing more comes, once nothing waits any more."""
        with self._changed:
            if not self._rows:
                self._listener.check()
            return self._first + len(self._rows)

    def rows(self, first: int, end: int) -> list[LiveRow]:
        with self._changed:
            return list(islice(self._rows, first - self._first, end - self._first))

    def drop(self, end: int) -> None:
        """Those before `end` are not asked for again."""
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

    def _take(self, items: Sequence[Item]) -> None:
        """Returns when there is room for more."""
        with self._changed:
            self._add(map(row_of, items))
            self._changed.wait_for(lambda: self._has_room() or self._listener.stopping)

    def _add(self, rows: Iterable[LiveRow]) -> None:
        for row in rows:
            self._rows.append(row)
            self._bytes += _size(row)

    def _has_room(self) -> bool:
        return len(self._rows) < ROWS_MAX and self._bytes < BYTES_MAX


def _size(row: LiveRow) -> int:
    return len(row.key) + len(row.value)


@dataclass
class LiveShare(InputPartition):
    """The rows themselves, as an Arrow IPC stream."""

    stream: bytes


class LiveReader(DataSourceStreamReader):
    """On the driver it holds the receiver, once there is one; tasks use `read` alone."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        assert options.socket is not None
        self._address = options.socket
        self._patterns = (b"",) if options.patterns is None else options.patterns
        self._rows_max = options.offsets_per_trigger_max
        self._schema = schema
        self._receiver: Receiver | None = None

    def initialOffset(self) -> LiveOffset:
        self._begin(0, [])
        return {_NAME: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: LiveOffset, limit: ReadLimit) -> LiveOffset:
        receiver = self._receiver or self._begin(start[_NAME], [gap(None)])
        end = receiver.end
        return {
            _NAME: min(end, start[_NAME] + limit.max_rows)
            if isinstance(limit, ReadMaxRows)
            else end
        }

    def partitions(self, start: LiveOffset, end: LiveOffset) -> Sequence[InputPartition]:
        first, last = start[_NAME], end[_NAME]
        if first == last:
            return []
        if self._receiver is None:
            # An earlier run had planned this batch, and ended with what was in it.
            self._begin(last, [gap(None)])
            rows = [gap(last - first)]
        else:
            rows = self._receiver.rows(first, last)
        return [LiveShare(_encode(batch_of(rows, first, origin_of(self._address))))]

    def commit(self, end: LiveOffset) -> None:
        if self._receiver is not None:
            self._receiver.drop(end[_NAME])

    def stop(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LiveShare)
        for batch in pa.ipc.open_stream(partition.stream):
            yield conform(batch, self._schema)

    def _begin(self, first: int, rows: Iterable[LiveRow]) -> Receiver:
        warnings.warn(
            f"sbus: a stream from the bus at {self._address} cannot be read again, what a batch "
            "that fails had is lost: record the bus and give path, or give spoolDir",
            stacklevel=2,
        )
        self._receiver = Receiver(Listener(self._address, self._patterns), first, rows)
        return self._receiver


def _encode(batch: pa.RecordBatch) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    whole: bytes = stream.getvalue().to_pybytes()
    return whole
