"""A stream from the bus itself by way of a directory: at least once from receipt on.

The driver records what it receives, in the form in which a recorder does, and the stream reads that
recording. So what was received is read again after a crash; what crossed the bus while no query ran
is a GAP. Of the recording, what a batch got through is dropped, a segment at a time.
"""

import threading
import time
from pathlib import Path

import pyarrow as pa

from sbus.client.blocking import Connection
from sbus.client.inbox import Lost
from sbus.errors import ConfigurationError, SbusError
from sbus.pipeline.spark.live_rows import LiveRow, batch_of, gap, origin_of, row_of, subscribed
from sbus.pipeline.spark.options import SourceOptions
from sbus.pipeline.spark.planning import Offsets, Tables
from sbus.pipeline.spark.stream import StreamReader
from sbus.pipeline.store import Rolling, Store
from sbus.protocol.packets import Message

_TABLE = "messages"
_ROLLING = Rolling(bytes_max=64 * 1024 * 1024, seconds_max=60.0)
_BATCH_MESSAGES_MAX = 10_000
_PREDECESSOR_SECONDS_MAX = 10.0
"""A query that is started again finds the process of the one before still ending."""
_RETRY_SECONDS = 0.1


class Spool:
    """A recorder of one subscription, in a thread of its own."""

    def __init__(self, bus: Connection[Message | Lost], store: Store) -> None:
        self._bus = bus
        self._store = store
        self._table = store.tables[_TABLE]
        self._fault: Exception | None = None
        if self._table.next_offset:
            self._record([gap(None)])

    def start(self) -> None:
        # It waits for the bus, and ends with the process; what is torn then is cut off later.
        threading.Thread(target=self._receive, daemon=True, name="sbus-spool").start()

    def check(self) -> None:
        """Raises why nothing is recorded any more."""
        if self._fault is not None:
            raise self._fault

    def drop(self, end: int) -> None:
        """Segments with nothing from offset `end` on are not needed any more."""
        with self._store.edit() as change:
            table = change.table(_TABLE)
            kept = [file for file in table.files if file.end is None or file.end > end]
            if len(kept) < len(table.files):
                earliest = max(file.end or 0 for file in table.files if file not in kept)
                change.set_table(_TABLE, earliest, kept)

    def _receive(self) -> None:
        try:
            while True:
                items = self._bus.receive_many(_BATCH_MESSAGES_MAX)
                self._record([row_of(item) for item in items])
                if self._table.is_due(_ROLLING):
                    self._table.roll()
        except (SbusError, OSError) as fault:
            self._fault = fault

    def _record(self, rows: list[LiveRow]) -> None:
        batch = batch_of(rows, self._table.next_offset, self._store.origin)
        times = [row.timestamp_us for row in rows]
        self._table.append(batch, min(times), max(times))


class SpoolReader(StreamReader):
    """A stream over what it records itself; only `read` runs elsewhere than on the driver."""

    def __init__(self, options: SourceOptions, schema: pa.Schema, path: str) -> None:
        super().__init__(options, schema, path)
        assert options.socket is not None
        self._address = options.socket
        self._directory = Path(path)
        self._spool: Spool | None = None

    def commit(self, end: Offsets) -> None:
        recorder = origin_of(self._address).recorder
        if self._spool is not None and recorder in end:
            self._spool.drop(end[recorder])

    def _tables(self) -> Tables:
        if self._spool is None:
            self._spool = self._begin()
        self._spool.check()
        return super()._tables()

    def _begin(self) -> Spool:
        patterns = self._options.patterns
        bus = subscribed(self._address, (b"",) if patterns is None else patterns)
        spool = Spool(bus, self._open())
        spool.start()
        return spool

    def _open(self) -> Store:
        deadline = time.monotonic() + _PREDECESSOR_SECONDS_MAX
        while True:
            try:
                return Store(self._directory, origin_of(self._address))
            except ConfigurationError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)
