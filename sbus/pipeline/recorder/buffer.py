"""The buffer between receiving messages and writing them, and the task that writes it out.

A source puts rows in. The writer takes all of them at once, when there are enough or the first has
waited long enough, and writes them in a thread, so receiving continues. The buffer is bounded: a
source waits while it is full, and then the bus queues messages, or drops some and says so. Putting
and taking never wait, so cancelling a task loses nothing.
"""

import time
from collections.abc import Sequence

import pyarrow as pa
import trio

from sbus.client.message_joiner import MissedItems, MonitoredBatch
from sbus.client.message_queue import Lost
from sbus.errors import SbusError
from sbus.pipeline.recorder import message_rows
from sbus.pipeline.recorder.message_rows import GAP_PACKET
from sbus.pipeline.store.writer import Rolling, TableWriter
from sbus.unix.errno_sets import DISK_FULL

ROWS_MAX = 400_000
BYTES_MAX = 64 * 1024 * 1024
FLUSH_BYTES = 8 * 1024 * 1024
"""A batch of this size is written, however few rows it has."""


class RecordingStopped(SbusError):
    """The recording cannot continue; the text says why. What was committed is safe."""


class Buffer:
    """Counts what waits, and wakes the one source and the one writer."""

    def __init__(self, flush_rows: int) -> None:
        self.rows = 0
        self.bytes = 0
        self.is_closed = False
        """Nothing more will come."""
        self._flush_rows = flush_rows
        self._changed = trio.Event()

    @property
    def is_full(self) -> bool:
        return self.rows >= ROWS_MAX or self.bytes >= BYTES_MAX

    @property
    def is_due(self) -> bool:
        """Whether there are enough rows for a batch, or there will be no more."""
        return self.is_closed or self.rows >= self._flush_rows or self.bytes >= FLUSH_BYTES

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    async def wait_rows(self) -> None:
        """Return when there are rows, or there will be no more."""
        while not (self.rows or self.is_closed):
            await self._changed.wait()

    async def wait_due(self) -> None:
        while not self.is_due:
            await self._changed.wait()

    async def wait_room(self) -> None:
        while self.is_full:
            await self._changed.wait()

    def _count_put(self, rows: int, size: int) -> None:
        was_empty, was_due = not self.rows, self.is_due
        self.rows += rows
        self.bytes += size
        if was_empty or (self.is_due and not was_due):
            self._wake()

    def _count_taken(self) -> None:
        self.rows = self.bytes = 0
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def put_gap(self, lost: int | None) -> None:
        """Here `lost` messages are missing; None if the number is unknown."""
        raise NotImplementedError

    def take(self, first_offset: int) -> pa.RecordBatch:
        """Everything, as rows; there is something."""
        raise NotImplementedError


class PacketBuffer(Buffer):
    """For packets of a subscription."""

    def __init__(self, flush_rows: int) -> None:
        super().__init__(flush_rows)
        self._packets: list[bytes] = []
        self._stamps_ns: list[int] = []
        self._losses: dict[int, int | None] = {}

    def put(self, packets: Sequence[bytes], stamps_ns: Sequence[int]) -> None:
        """`MSG` packets, and their times of arrival."""
        self._packets += packets
        self._stamps_ns += stamps_ns
        self._count_put(len(packets), sum(map(len, packets)))

    def put_gap(self, lost: int | None) -> None:
        self._losses[len(self._packets)] = lost
        self.put([GAP_PACKET], [time.time_ns()])

    def take(self, first_offset: int) -> pa.RecordBatch:
        packets, stamps_ns, losses = self._packets, self._stamps_ns, self._losses
        self._packets, self._stamps_ns, self._losses = [], [], {}
        self._count_taken()
        return message_rows.of_packets(first_offset, packets, stamps_ns, losses)


class MonitorBuffer(Buffer):
    """For messages of the monitor's stream."""

    def __init__(self, flush_rows: int) -> None:
        super().__init__(flush_rows)
        self._items: list[MonitoredBatch | MissedItems | Lost] = []

    def put(self, items: Sequence[MonitoredBatch | MissedItems | Lost]) -> None:
        self._items += items
        batches = [item for item in items if isinstance(item, MonitoredBatch)]
        rows = sum(len(batch.keys) for batch in batches) + len(items) - len(batches)
        self._count_put(rows, sum(batch.bytes for batch in batches))

    def put_gap(self, lost: int | None) -> None:
        self.put([Lost(lost)])

    def take(self, first_offset: int) -> pa.RecordBatch:
        items, self._items = self._items, []
        self._count_taken()
        now_us = time.time_ns() // 1000
        return message_rows.of_monitored(first_offset, items, now_us)


async def write_out(
    buffer: Buffer,
    table: TableWriter,
    rolling: Rolling,
    flush_seconds: float,
) -> None:
    """Write what comes until the buffer is closed and empty. Raises RecordingStopped."""
    while True:
        await buffer.wait_rows()
        if not buffer.rows:
            return
        with trio.move_on_after(flush_seconds):
            await buffer.wait_due()
        await write(table, buffer.take(table.next_offset), rolling)


async def write(table: TableWriter, batch: pa.RecordBatch, rolling: Rolling) -> None:
    """Commit a batch, in a thread. Raises RecordingStopped."""
    await trio.to_thread.run_sync(write_now, table, batch, rolling)


def write_now(table: TableWriter, batch: pa.RecordBatch, rolling: Rolling) -> None:
    """Commit a batch. Raises RecordingStopped."""
    try:
        table.append(batch, rolling)
    except OSError as error:
        advice = ""
        if error.errno in DISK_FULL:
            advice = ": make room, or keep less (--retain-days, --retain-bytes), and start it again"
        raise RecordingStopped(
            f"stopped, {table.name} cannot be written ({error.strerror}); all before offset "
            f"{table.next_offset} is safe{advice}"
        ) from error
