"""Recording the tables `clients` and `events`, which only an administrator of the bus can see.

All clients are asked for every few seconds; events are received as they happen.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import trio

from sbus.client.admin import AdminConnection
from sbus.client.message_joiner import MissedItems
from sbus.client.streams import EventStream
from sbus.pipeline.recorder.buffer import write
from sbus.pipeline.store.row_batches import row_batch
from sbus.pipeline.store.schemas import CLIENTS, SEGMENT_SCHEMAS
from sbus.pipeline.store.writer import RecordingWriter, Rolling
from sbus.protocol import admin
from sbus.protocol.admin_results import ClientReport, ClientsResult, StatsResult

_POLL_SECONDS = 0.5
_MISSED = "missed"
"""The event for events that the bus could not send, because they were not read fast enough."""
_STATISTICS = "stats"
"""The event that holds how long all deliveries took inside the bus; the bus has no such event."""
_ACTIVITY = CLIENTS.names[CLIENTS.names.index("messages_in") :]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AdminTables:
    """Records what `connect` gives access to; both methods raise BusError, RecordingStopped."""

    connect: Callable[[], AdminConnection]
    writer: RecordingWriter
    rolling: Rolling
    interval_seconds: float

    async def record_clients(self) -> None:
        """Write a row for each client, every `interval_seconds`."""
        with await trio.to_thread.run_sync(self.connect) as connection:
            while True:
                reports = await trio.to_thread.run_sync(_all_clients, connection)
                now_us = time.time_ns() // 1000
                rows = [_client_row(report) for report in reports]
                await self._write("clients", rows, [now_us] * len(rows))
                await trio.sleep(self.interval_seconds)

    async def record_events(self, begun: Callable[[], None]) -> None:
        """Write the events that happen after `begun` is called, and every `interval_seconds` one
        about the time that deliveries took inside the bus."""
        with (
            await trio.to_thread.run_sync(self.connect) as connection,
            await trio.to_thread.run_sync(self.connect) as statistics,
        ):
            stream = await trio.to_thread.run_sync(EventStream, connection)
            begun()
            asked_at = -math.inf
            while True:
                with trio.move_on_after(_POLL_SECONDS):
                    await trio.lowlevel.wait_readable(connection.fileno())
                await trio.sleep(_POLL_SECONDS)
                events = [_event(item) for item in stream.receive_many(0)]
                if trio.current_time() - asked_at >= self.interval_seconds:
                    asked_at = trio.current_time()
                    events.append(await trio.to_thread.run_sync(_latency_event, statistics))
                stamps_us = [round(event["time"] * 1e6) for event in events]
                await self._write("events", [_event_row(event) for event in events], stamps_us)

    async def _write(self, name: str, rows: Sequence[Row], stamps_us: Sequence[int]) -> None:
        if not rows:
            return
        table, schema = self.writer.tables[name], SEGMENT_SCHEMAS[name]
        columns = {
            field.name: pa.array([row.get(field.name) for row in rows], field.type)
            for field in schema
            if field.name in rows[0]
        }
        stamps = np.fromiter(stamps_us, np.int64, len(stamps_us))
        batch = row_batch(name, table.next_offset, stamps, columns)
        await write(table, batch, self.rolling)


def _all_clients(connection: AdminConnection) -> list[ClientReport]:
    reports: list[ClientReport] = []
    after: int | None = 0
    while after is not None:
        page = connection.ask(admin.Clients(after=after), ClientsResult)
        reports += page.clients
        after = page.next
    return reports


def _client_row(report: ClientReport) -> Row:
    row: Row = dict.fromkeys(_ACTIVITY)
    for name in ("client", "uid", "gid", "pid", "program", "worker"):
        row[name] = getattr(report, name)
    row["connected_at"] = round(report.connected_at * 1e6)
    if report.activity is not None:
        row |= {name: getattr(report.activity, name) for name in _ACTIVITY}
    return row


def _latency_event(connection: AdminConnection) -> Row:
    """The broker's histogram of all deliveries since it began."""
    latency = connection.ask(admin.Stats(), StatsResult).traffic.latency
    return {"event": _STATISTICS, "time": time.time(), "latency": msgspec.to_builtins(latency)}


def _event(item: Row | MissedItems) -> Row:
    if isinstance(item, MissedItems):
        return {"event": _MISSED, "time": time.time(), "missed": item.count}
    return item


def _event_row(event: Row) -> Row:
    names = ("event", "client", "uid", "pid", "program", "worker")
    return {**{name: event.get(name) for name in names}, "fields": json.dumps(event)}
