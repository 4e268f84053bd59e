"""A stream from the bus itself by way of a directory: at least once from receipt on.

The driver records what it receives, in the form in which a recorder does, and the stream reads that
recording. So what was received is read again after a crash; what crossed the bus while no query ran
is a GAP. Of the recording, what a batch got through is dropped, a segment at a time.
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from sbus.errors import ConfigurationError
from sbus.pipeline.housekeeping import Keeping, delete_retired
from sbus.pipeline.spark.listening import Item, Listener
from sbus.pipeline.spark.live_rows import LiveRow, batch_of, gap, origin_of, row_of
from sbus.pipeline.spark.options import EARLIEST, Bound, SourceOptions
from sbus.pipeline.spark.planning import Offsets
from sbus.pipeline.spark.stream import StreamReader
from sbus.pipeline.spark.watching import Tables
from sbus.pipeline.store import Rolling, Store

_TABLE = "messages"
_ROLLING = Rolling(bytes_max=64 * 1024 * 1024, seconds_max=60.0)
_KEEPING = Keeping(seconds=None, bytes=None, grace_seconds=60.0)
"""This query is the only reader, and has no task left that reads what it has committed."""
_PREDECESSOR_SECONDS_MAX = 10.0
"""A query that is started again finds the process of the one before still ending."""
_RETRY_SECONDS = 0.1


class Spool:
    """A recorder of what a listener hears."""

    def __init__(self, listener: Listener, store: Store) -> None:
        self._listener = listener
        self._store = store
        self._table = store.tables[_TABLE]
        if self._table.next_offset:
            self._record([gap(None)])
        listener.start(self._take)

    def check(self) -> None:
        """Raises why nothing is recorded any more."""
        self._listener.check()

    def drop(self, end: int) -> None:
        """Segments with nothing from offset `end` on are not needed any more."""
        with self._store.edit() as change:
            table = change.table(_TABLE)
            kept = [file for file in table.files if file.end is None or file.end > end]
            if len(kept) < len(table.files):
                earliest = max(file.end or 0 for file in table.files if file not in kept)
                change.set_table(_TABLE, earliest, kept)
        now_us = time.time_ns() // 1000
        delete_retired(self._store.directory, self._store.origin.recorder, _KEEPING, now_us)

    def close(self) -> None:
        self._listener.close()
        self._store.close()

    def _take(self, items: Sequence[Item]) -> None:
        self._record([row_of(item) for item in items])
        if self._table.is_due(_ROLLING):
            self._table.roll()

    def _record(self, rows: Sequence[LiveRow]) -> None:
        batch = batch_of(rows, self._table.next_offset, self._store.origin)
        times = [row.timestamp_us for row in rows]
        self._table.append(batch, min(times), max(times))


class SpoolReader(StreamReader):
    """A stream over what it records itself; only `read` runs elsewhere than on the driver."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, path: str) -> None:
        # What is received while the first offset is being asked for belongs to the stream.
        everything = Bound("startingOffsets", everywhere=EARLIEST)
        super().__init__(dataclasses.replace(options, starting=everything), schema, path)
        assert options.socket is not None
        self._address = options.socket
        self._directory = Path(path)
        self._spool: Spool | None = None

    def commit(self, end: Offsets) -> None:
        recorder = origin_of(self._address).recorder
        if self._spool is not None and recorder in end:
            self._spool.drop(end[recorder])

    def stop(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        end = super().latestOffset(start, limit)
        if end == start and self._spool is not None:
            self._spool.check()
        return end

    def _tables(self) -> Tables:
        if self._spool is None:
            self._spool = self._begin()
        return super()._tables()

    def _begin(self) -> Spool:
        patterns = self._options.patterns
        listener = Listener(self._address, (b"",) if patterns is None else patterns)
        try:
            return Spool(listener, self._open())
        except BaseException:
            listener.close()
            raise

    def _open(self) -> Store:
        deadline = time.monotonic() + _PREDECESSOR_SECONDS_MAX
        while True:
            try:
                return Store(self._directory, origin_of(self._address))
            except ConfigurationError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)
