"""What has been received and not been written yet.

A receiver puts rows in; a writer takes all of them at once, when there are enough or the first has
waited long enough. It is bounded: a receiver waits while it is full, and then the bus keeps the
messages, or drops some and says so. Putting in and taking out never wait, so nothing is between two
places when a task is cancelled.

Knows nothing of sockets or files.
"""

import time
from collections.abc import Sequence

import trio

from sbus.client.inbox import Lost
from sbus.client.message_joiner import MonitoredMessage
from sbus.pipeline import rows
from sbus.pipeline.rows import GAP_PACKET, Batch
from sbus.pipeline.store import Origin

ROWS_MAX = 400_000
BYTES_MAX = 64 * 1024 * 1024
FLUSH_BYTES = 8 * 1024 * 1024
"""A batch is written when it is that large, however few rows it has."""


class Pending:
    """How much waits, and who waits for that. There is one receiver and one writer."""

    def __init__(self, flush_rows: int) -> None:
        self.rows = 0
        self.bytes = 0
        self.closed = False
        """Nothing more will come."""
        self._flush_rows = flush_rows
        self._changed = trio.Event()

    @property
    def is_full(self) -> bool:
        return self.rows >= ROWS_MAX or self.bytes >= BYTES_MAX

    @property
    def is_due(self) -> bool:
        """There are enough for a batch, or there will be no more."""
        return self.closed or self.rows >= self._flush_rows or self.bytes >= FLUSH_BYTES

    def close(self) -> None:
        self.closed = True
        self._change()

    async def wait_rows(self) -> None:
        """Return when something is there, or nothing more will come."""
        while not (self.rows or self.closed):
            await self._changed.wait()

    async def wait_due(self) -> None:
        while not self.is_due:
            await self._changed.wait()

    async def wait_room(self) -> None:
        while self.is_full:
            await self._changed.wait()

    def _note_put(self, rows: int, size: int) -> None:
        was_empty, was_due = not self.rows, self.is_due
        self.rows += rows
        self.bytes += size
        if was_empty or (self.is_due and not was_due):
            self._change()

    def _note_taken(self) -> None:
        self.rows = self.bytes = 0
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def put_gap(self, lost: int | None) -> None:
        """Here so many messages are missing; None for nobody knows."""
        raise NotImplementedError

    def take(self, origin: Origin, first_offset: int) -> Batch:
        """Everything, as rows; there is something."""
        raise NotImplementedError


class PendingPackets(Pending):
    """As a plain subscription receives them."""

    def __init__(self, flush_rows: int) -> None:
        super().__init__(flush_rows)
        self._packets: list[bytes] = []
        self._stamps_ns: list[int] = []
        self._losses: dict[int, int | None] = {}

    def put(self, packets: Sequence[bytes], stamps_ns: Sequence[int]) -> None:
        """`MSG` packets, and when each came."""
        self._packets += packets
        self._stamps_ns += stamps_ns
        self._note_put(len(packets), sum(map(len, packets)))

    def put_gap(self, lost: int | None) -> None:
        self._losses[len(self._packets)] = lost
        self.put([GAP_PACKET], [time.time_ns()])

    def take(self, origin: Origin, first_offset: int) -> Batch:
        packets, stamps_ns, losses = self._packets, self._stamps_ns, self._losses
        self._packets, self._stamps_ns, self._losses = [], [], {}
        self._note_taken()
        return rows.of_packets(origin, first_offset, packets, stamps_ns, losses)


class PendingMonitored(Pending):
    """As a monitor's stream tells them."""

    def __init__(self, flush_rows: int) -> None:
        super().__init__(flush_rows)
        self._items: list[MonitoredMessage | Lost] = []

    def put(self, items: Sequence[MonitoredMessage | Lost]) -> None:
        self._items += items
        size = sum(
            len(item.key) + len(item.payload or b"")
            for item in items
            if isinstance(item, MonitoredMessage)
        )
        self._note_put(len(items), size)

    def put_gap(self, lost: int | None) -> None:
        self.put([Lost(lost)])

    def take(self, origin: Origin, first_offset: int) -> Batch:
        items, self._items = self._items, []
        self._note_taken()
        return rows.of_monitored(origin, first_offset, items, time.time_ns() // 1000)
