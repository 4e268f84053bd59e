"""Recording what the administrator of a bus sees besides messages: its clients, and what happens.

Clients are asked for every few seconds, events told as they happen. A failure here is said and
ends this part of the recording alone.

Knows nothing of messages.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import trio

from sbus.client.admin import AdminConnection
from sbus.client.message_joiner import MissedItems
from sbus.client.streams import EventStream
from sbus.pipeline.arrow_columns import of_values
from sbus.pipeline.rows import Batch, origin_columns
from sbus.pipeline.schemas import CLIENTS, EVENTS, TIMESTAMP
from sbus.pipeline.store import Origin, Rolling, TableLog
from sbus.pipeline.writing import write
from sbus.protocol import admin
from sbus.protocol.admin_results import ClientReport, ClientsResult, StatsResult

_EVENTS_LOOK_SECONDS = 0.5
_MISSED = "missed"
"""Events that the bus could not send, because they were not read fast enough."""
STATISTICS = "stats"
"""How long the deliveries of the whole bus took inside it; no event of the bus's own."""

Connect = Callable[[], AdminConnection]


async def record_clients(
    connect: Connect, origin: Origin, log: TableLog, rolling: Rolling, interval_seconds: float
) -> None:
    """Write down all clients, every so often. Raises BusError, RecordingStopped."""
    with await trio.to_thread.run_sync(connect) as connection:
        while True:
            reports = await trio.to_thread.run_sync(_all_clients, connection)
            now_us = time.time_ns() // 1000
            if reports:
                await write(log, of_clients(origin, log.next_offset, reports, now_us), rolling)
            await trio.sleep(interval_seconds)


def _all_clients(connection: AdminConnection) -> list[ClientReport]:
    reports: list[ClientReport] = []
    after: int | None = 0
    while after is not None:
        page = connection.ask(admin.Clients(after=after), ClientsResult)
        reports += page.clients
        after = page.next
    return reports


def of_clients(
    origin: Origin, first_offset: int, reports: Sequence[ClientReport], now_us: int
) -> Batch:
    """A row for each client."""
    rows = []
    for report in reports:
        row = {name: getattr(report, name) for name in ("client", "uid", "gid", "pid", "program")}
        row |= {"worker": report.worker, "connected_at": round(report.connected_at * 1e6)}
        if report.activity is not None:
            row |= {name: getattr(report.activity, name) for name in _ACTIVITY}
        rows.append(row)
    return _batch(CLIENTS, origin, first_offset, rows, [now_us] * len(rows))


_ACTIVITY = CLIENTS.names[CLIENTS.names.index("messages_in") :]


async def record_events(
    connect: Connect,
    origin: Origin,
    log: TableLog,
    rolling: Rolling,
    interval_seconds: float,
    begun: Callable[[], None],
) -> None:
    """Write down what happens after `begun` is called, and every so often how long deliveries have
    taken inside the broker. Raises BusError, RecordingStopped."""
    with (
        await trio.to_thread.run_sync(connect) as connection,
        await trio.to_thread.run_sync(connect) as statistics,
    ):
        stream = await trio.to_thread.run_sync(EventStream, connection)
        begun()
        asked_at = -math.inf
        while True:
            with trio.move_on_after(_EVENTS_LOOK_SECONDS):
                await trio.lowlevel.wait_readable(connection.fileno())
            await trio.sleep(_EVENTS_LOOK_SECONDS)
            events = list(stream.receive_many(0))
            if trio.current_time() - asked_at >= interval_seconds:
                asked_at = trio.current_time()
                events.append(await trio.to_thread.run_sync(_latency, statistics))
            if events:
                batch = of_events(origin, log.next_offset, events, time.time_ns() // 1000)
                await write(log, batch, rolling)


def _latency(connection: AdminConnection) -> dict[str, Any]:
    """The broker's histogram of all deliveries since it began, as an event."""
    latency = connection.ask(admin.Stats(), StatsResult).traffic.latency
    return {"event": STATISTICS, "time": time.time(), "latency": msgspec.to_builtins(latency)}


def of_events(
    origin: Origin, first_offset: int, events: Sequence[dict[str, Any] | MissedItems], now_us: int
) -> Batch:
    """A row for each event; what was missed is stamped with `now_us`."""
    whole: list[dict[str, Any]] = [
        {"event": _MISSED, "time": now_us / 1e6, "missed": event.count}
        if isinstance(event, MissedItems)
        else event
        for event in events
    ]
    names = ("event", "client", "uid", "pid", "program", "worker")
    rows = [
        {name: event.get(name) for name in names} | {"fields": json.dumps(event)} for event in whole
    ]
    stamps_us = [round(event["time"] * 1e6) for event in whole]
    return _batch(EVENTS, origin, first_offset, rows, stamps_us)


def _batch(
    schema: pa.Schema,
    origin: Origin,
    first_offset: int,
    rows: Sequence[dict[str, Any]],
    stamps_us: Sequence[int],
) -> Batch:
    columns = {
        **origin_columns(origin, len(rows)),
        "offset": of_values(range(first_offset, first_offset + len(rows)), pa.int64()),
        "timestamp": of_values(stamps_us, TIMESTAMP),
    }
    arrays = [
        columns[field.name]
        if field.name in columns
        else of_values([row.get(field.name) for row in rows], field.type)
        for field in schema
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return Batch(batch, min(stamps_us), max(stamps_us))
