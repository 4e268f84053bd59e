"""A stream from the bus itself, without a recording: best effort.

A thread of the driver receives messages and keeps them until Spark has planned a batch with them.
They travel to the tasks inside the plan. Nothing is on disk, so a batch that is not finished when
the query ends is lost. A row of kind GAP stands where messages are missing: for that reason, or
because no query ran, or because the bus dropped them for a reader that was too slow.

What waits is bounded; when that is full, nothing more is received, and the limits of the bus apply.
Rows do not tell the publisher, since a message carries no sender.
"""

import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from sbus.client.blocking import Connection, connect
from sbus.client.inbox import Lost
from sbus.errors import ConfigurationError, PacketRefused, SbusError
from sbus.pipeline.spark.options import SourceOptions
from sbus.pipeline.store.row_batches import RecorderIdentity, message_batch
from sbus.pipeline.store.schemas import conform
from sbus.protocol.packets import Message
from sbus.protocol.text import to_text

ROWS_MAX = 200_000
BYTES_MAX = 64 * 1024 * 1024
"""What may wait for Spark, and so the most in a batch; one read may exceed it."""
READ_MESSAGES_MAX = 10_000
CONNECT_SECONDS_MAX = 10.0
_POLL_SECONDS = 0.2
"""How long the thread takes to notice that it is to end while nothing arrives."""

LiveOffset = dict[str, int]
"""`{"live": next}`: rows are numbered as they arrive, also across restarts."""
_NAME = "live"


class LiveRow(NamedTuple):
    """A row of the table `messages`; `lost` is None for a message."""

    key: str
    value: bytes
    lost: Lost | None
    timestamp_us: int


def _row_of(item: Message | Lost) -> LiveRow:
    now_us = time.time_ns() // 1000
    if isinstance(item, Lost):
        return LiveRow("", b"", item, now_us)
    return LiveRow(to_text(item.key), item.payload, None, now_us)


def _connect(address: str, patterns: Sequence[bytes]) -> Connection[Message | Lost]:
    """A connection that receives what is published from now on under keys that match one of these.

    Raises BusError, or ConfigurationError if the bus cannot be reached or refuses a pattern.
    """
    bus: Connection[Message | Lost] = connect(
        address, losses="report", timeout_seconds=CONNECT_SECONDS_MAX
    )
    try:
        for pattern in patterns:
            bus.subscribe(pattern)
        bus.sync(timeout_seconds=CONNECT_SECONDS_MAX)
    except PacketRefused as refusal:
        bus.close()
        raise ConfigurationError(f"subscribe: the bus refuses it: {refusal}") from refusal
    except BaseException:
        bus.close()
        raise
    return bus


class LiveRows:
    """What was received, and is still needed.

    Invariant: the rows that wait have the offsets from `first` to `end` (exclusive).
    """

    def __init__(
        self, bus: Connection[Message | Lost], first: int, rows: Sequence[LiveRow]
    ) -> None:
        """Begins with these rows, and owns the connection."""
        self._bus = bus
        self._first = first
        self._rows = deque(rows)
        self._bytes = 0
        self._error: Exception | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    @property
    def end(self) -> int:
        """The next offset. Once no row waits, it raises the error that ended the thread."""
        with self._changed:
            if not self._rows and self._error is not None:
                raise self._error
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
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()
        self._bus.close()

    def _receive(self) -> None:
        try:
            while not self._is_closed:
                try:
                    items = self._bus.receive_many(READ_MESSAGES_MAX, timeout_seconds=_POLL_SECONDS)
                except TimeoutError:
                    continue
                self._add(list(map(_row_of, items)))
        except (SbusError, OSError) as error:
            self._error = error

    def _add(self, rows: Sequence[LiveRow]) -> None:
        """Returns when there is room for more."""
        with self._changed:
            self._rows += rows
            self._bytes += sum(map(_size, rows))
            self._changed.wait_for(lambda: self._has_room() or self._is_closed)

    def _has_room(self) -> bool:
        return len(self._rows) < ROWS_MAX and self._bytes < BYTES_MAX


def _size(row: LiveRow) -> int:
    return len(row.key) + len(row.value)


def live_batch(
    rows: Sequence[LiveRow], first_offset: int, identity: RecorderIdentity
) -> pa.RecordBatch:
    columns = {
        "key": pa.array([row.key for row in rows], pa.string()),
        "value": pa.array([row.value for row in rows], pa.binary()),
    }
    losses = {at: row.lost.count for at, row in enumerate(rows) if row.lost is not None}
    stamps_us = np.array([row.timestamp_us for row in rows])
    return message_batch(identity, first_offset, stamps_us, columns, losses).rows


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
        rows = self._rows or self._begin(start[_NAME], [_row_of(Lost(None))])
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
            self._begin(last, [_row_of(Lost(None))])
            rows = [_row_of(Lost(last - first))]
        else:
            rows = self._rows.between(first, last)
        batch = live_batch(rows, first, RecorderIdentity.here(self._address))
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
            "that fails had is lost: record the bus and give path",
            stacklevel=2,
        )
        self._rows = LiveRows(_connect(self._address, self._patterns), first, rows)
        return self._rows
