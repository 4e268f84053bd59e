"""A stream from the bus itself through a directory: at least once from receipt on.

The driver records what it receives, as a recorder does, and the stream reads that recording. So
what was received is read again after a crash; what crossed the bus while no query ran is a GAP.
Rows that a finished batch had are dropped from the recording, a segment file at a time.
"""

import dataclasses
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from sbus.errors import ConfigurationError
from sbus.pipeline.spark.listener import Listener, LiveRow, gap, live_batch
from sbus.pipeline.spark.options import EARLIEST, Bound, SourceOptions
from sbus.pipeline.spark.planning import Offsets
from sbus.pipeline.spark.readers import StreamReader
from sbus.pipeline.store import segment_file
from sbus.pipeline.store.reader import Tables
from sbus.pipeline.store.recorder_file import recorder_of
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.writer import RecordingWriter, Rolling

_TABLE = "messages"
_ROLLING = Rolling(bytes_max=64 * 1024 * 1024, seconds_max=60.0)
_PREDECESSOR_SECONDS_MAX = 10.0
"""A query that is restarted may find its previous process still ending."""
_RETRY_SECONDS = 0.1


class Spool:
    """Records what a listener receives."""

    def __init__(self, listener: Listener, recording: RecordingWriter) -> None:
        self._listener = listener
        self._recording = recording
        self._table = recording.tables[_TABLE]
        if self._table.next_offset:
            self._record([gap(None)])
        listener.start(self._record)

    def check(self) -> None:
        """Raise the error that ended the recording, if one did."""
        self._listener.check()

    def drop(self, end: int) -> None:
        """Delete the files whose offsets are all before `end`: this query is the only reader, and
        no task still reads what it has committed."""
        files = segment_file.segment_files(self._recording.home, _TABLE)
        for path, following in pairwise(files):
            if segment_file.first_offset(following) <= end:
                segment_file.delete(path)

    def close(self) -> None:
        self._listener.close()
        self._recording.close()

    def _record(self, rows: Sequence[LiveRow]) -> None:
        batch = live_batch(rows, self._table.next_offset, self._recording.identity)
        self._table.append(batch, _ROLLING)


class SpoolReader(StreamReader):
    """A stream over what it records itself; tasks only use `read`."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, path: str) -> None:
        # What is received before the first offset is asked for belongs to the stream.
        everything = Bound("startingOffsets", everywhere=EARLIEST)
        super().__init__(dataclasses.replace(options, starting=everything), schema, path)
        assert options.socket is not None
        self._identity = RecorderIdentity.here(options.socket)
        self._address = options.socket
        self._directory = Path(path)
        self._spool: Spool | None = None

    def commit(self, end: Offsets) -> None:
        for name, offset in end.items():
            if self._spool is not None and recorder_of(name) == self._identity.recorder:
                self._spool.drop(offset)

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

    def _open(self) -> RecordingWriter:
        # It holds everybody's messages.
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        deadline = time.monotonic() + _PREDECESSOR_SECONDS_MAX
        while True:
            try:
                return RecordingWriter(self._directory, self._identity)
            except ConfigurationError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)
