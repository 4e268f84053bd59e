"""A connection to the bus that a thread reads for as long as a query runs.

What arrives is handed on as rows, in order. While that takes its time, nothing more is read, so the
limits of the bus apply. Rows do not tell the publisher, since a message carries no sender.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sbus.client.blocking import Connection, connect
from sbus.client.inbox import Lost
from sbus.errors import ConfigurationError, PacketRefused, SbusError
from sbus.pipeline.store.arrow_columns import of_bytes, of_values
from sbus.pipeline.store.row_batches import RecorderIdentity, RowBatch, message_batch
from sbus.pipeline.store.schemas import GAP, MESSAGE
from sbus.protocol.packets import Message
from sbus.protocol.text import to_text

CONNECT_SECONDS_MAX = 10.0
READ_MESSAGES_MAX = 10_000
_POLL_SECONDS = 0.2
"""How long a listener that receives nothing takes to notice that it is to stop."""


class LiveRow(NamedTuple):
    """A row of the table `messages`; `lost` is for those of kind GAP, None if it is unknown."""

    key: str
    value: bytes
    kind: str
    lost: int | None
    timestamp_us: int


def gap(lost: int | None) -> LiveRow:
    """The row for messages that have just been found missing."""
    return LiveRow("", b"", GAP, lost, _now_us())


def _row_of(item: Message | Lost) -> LiveRow:
    if isinstance(item, Lost):
        return gap(item.count)
    return LiveRow(to_text(item.key), item.payload, MESSAGE, None, _now_us())


def _now_us() -> int:
    return time.time_ns() // 1000


def live_batch(rows: Sequence[LiveRow], first_offset: int, identity: RecorderIdentity) -> RowBatch:
    columns = {
        "key": of_values([row.key for row in rows], pa.string()),
        "value": of_bytes([row.value for row in rows], pa.binary()),
    }
    losses = {at: row.lost for at, row in enumerate(rows) if row.kind == GAP}
    stamps_us = np.fromiter((row.timestamp_us for row in rows), np.int64, len(rows))
    return message_batch(identity, first_offset, stamps_us, columns, losses)


class Listener:
    """Receives what is published from now on under keys that match one of the patterns.

    Raises BusError, or ConfigurationError if the bus cannot be reached or refuses a pattern.
    """

    def __init__(self, address: str, patterns: Sequence[bytes]) -> None:
        self._error: Exception | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._bus: Connection[Message | Lost] = connect(
            address, losses="report", timeout_seconds=CONNECT_SECONDS_MAX
        )
        try:
            for pattern in patterns:
                self._bus.subscribe(pattern)
            self._bus.sync(timeout_seconds=CONNECT_SECONDS_MAX)
        except PacketRefused as refusal:
            self._bus.close()
            raise ConfigurationError(f"subscribe: the bus refuses it: {refusal}") from refusal
        except BaseException:
            self._bus.close()
            raise

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self, take: Callable[[list[LiveRow]], None]) -> None:
        """Hand rows to `take`, in another thread."""
        self._thread = threading.Thread(target=self._run, args=(take,), daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the listener, if one did."""
        if self._error is not None:
            raise self._error

    def announce_stop(self) -> None:
        """Hand nothing more on once `take` has returned."""
        self._stopping.set()

    def close(self) -> None:
        """Stop; `take` is no longer called when this returns."""
        self.announce_stop()
        if self._thread is not None:
            self._thread.join()
        self._bus.close()

    def _run(self, take: Callable[[list[LiveRow]], None]) -> None:
        try:
            while not self.is_stopping:
                try:
                    items = self._bus.receive_many(READ_MESSAGES_MAX, timeout_seconds=_POLL_SECONDS)
                except TimeoutError:
                    continue
                take([_row_of(item) for item in items])
        except (SbusError, OSError) as error:
            self._error = error
