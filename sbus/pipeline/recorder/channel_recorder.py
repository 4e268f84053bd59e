"""Recording a durable channel: the messages of all hosts, from the stream that their bridges fill.

Each origin has a recording of its own in the directory, as if a recorder ran there. The stream
keeps what is not recorded yet, so nothing is buffered: a batch is fetched, its rows are committed,
the progress is noted, and then the batch is acknowledged. Rows have their epochs and numbers. So a
recorder that was killed before it noted its progress finds that in the rows, and what the stream
brings again is dropped: each message has one row.

The client of NATS runs with asyncio, in a thread.
"""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import trio
from nats.aio.msg import Msg

from sbus.bridge.configuration import Configuration, Link
from sbus.bridge.durable import StreamReader
from sbus.bridge.durable_messages import stream_name
from sbus.bridge.exchange import Exchange
from sbus.bridge.nats_link import NatsLink
from sbus.bridge.status import DurableStatus
from sbus.errors import ConfigurationError, reason_of
from sbus.pipeline.recorder.buffer import write_now
from sbus.pipeline.recorder.maintenance import maintain
from sbus.pipeline.recorder.message_rows import Arrival, arrivals, of_arrivals
from sbus.pipeline.recorder.recorder import Plan, Report, feed_watchdog, seal_rest
from sbus.pipeline.store import recorder_file, segment_file
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.writer import RecordingWriter
from sbus.unix.notify import Notifier
from sbus.unix.open_files import raise_open_files_limit

ORIGINS_MAX: Final = 1_000
"""Each has some open files, and anybody who may write to the stream can invent one."""
_NEWEST_ROWS: Final = 100_000
"""Where the progress is looked for."""
_REPORTED_MAX: Final = 1_000
_CANCEL_SECONDS: Final = 1.0
_HOST: Final = re.compile("[0-9A-Za-z._-]{1,64}")


async def record_channel(
    bridges: Configuration, channel: str, plan: Plan, notifier: Notifier, report: Report
) -> None:
    """Record until SIGTERM or SIGINT. Raises SbusError when recording cannot begin or continue."""
    pa.array(())  # imports pandas where it is installed, which takes half a second
    raise_open_files_limit()
    with ExitStack() as opened, closing(asyncio.new_event_loop()) as loop:
        recording = ChannelRecording(bridges, channel, plan, opened, report)
        stop = asyncio.Event()
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            try:
                async with trio.open_nursery() as helpers:
                    end = partial(loop.call_soon_threadsafe, stop.set)
                    helpers.start_soon(_end_at_signal, signals, end)
                    helpers.start_soon(maintain, recording.sealers, plan.retention, report)
                    if notifier.watchdog_seconds is not None:
                        helpers.start_soon(feed_watchdog, notifier, notifier.watchdog_seconds)
                    report(f"recording {channel} to {plan.directory}")
                    notifier.ready(f"recording {channel} to {plan.directory}")
                    await trio.to_thread.run_sync(loop.run_until_complete, recording.record(stop))
                    helpers.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                raise reason_of(group) from None
        notifier.stopping("sealing what is left")
        await seal_rest(recording.writers.values(), recording.sealers, report)


async def _end_at_signal(signals: AsyncIterator[int], end: Callable[[], object]) -> None:
    """Also when another task has failed."""
    try:
        await anext(signals)
    finally:
        end()


class ChannelRecording(StreamReader):
    """The recordings of all origins."""

    batch_messages_max = 1_024
    reads_all = True

    def __init__(
        self,
        bridges: Configuration,
        channel: str,
        plan: Plan,
        opened: ExitStack,
        report: Report,
    ) -> None:
        """What is opened is closed with `opened`. Raises ConfigurationError, OSError."""
        self._link = link = link_of(channel, bridges)
        self._plan = plan
        self._opened = opened
        self._stream = stream_name(link.prefix, channel)
        state = plan.directory / self._stream
        state.mkdir(parents=True, exist_ok=True)
        self._bridges = msgspec.structs.replace(bridges, origin="", state=str(state))
        report_once = lru_cache(_REPORTED_MAX)(lambda key, text: report(text))
        super().__init__(DurableStatus(channel), link.prefix, self._bridges, report_once)
        self.writers: dict[str, RecordingWriter] = {}
        """By origin."""
        self.sealers: list[Sealer] = []
        for found in recorder_file.load_all(plan.directory):
            identity = RecorderIdentity.of(found.host, found.bus, self._stream)
            if identity.recorder == found.recorder:
                for epoch, last in reached(self._open(identity).home):
                    self.progress.note(found.bus, epoch, last)

    async def record(self, stop: asyncio.Event) -> None:
        """Record until `stop` is set. Raises RecordingStopped, SbusError."""
        nothing_live = msgspec.structs.replace(self._link, exports=[], imports=[])
        exchange = Exchange(self._bridges, _ignore, self.report)
        link = NatsLink(self._stream, nothing_live, exchange, _ignore, self.report)
        link.durable.append(self)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            await stop.wait()
            while not running.done():  # the NATS client swallows cancellations now and then
                running.cancel()
                await asyncio.wait([running], timeout=_CANCEL_SECONDS)

    async def deliver(self, batch: list[Msg]) -> None:
        """Commit the rows of a batch. Nothing is awaited in here, so a link that ends cannot come
        between rows and progress."""
        found: dict[str, list[Arrival]] = {}
        for msg in batch:
            origin, items = self.feed(msg)
            if items:
                stamp_us = round(msg.metadata.timestamp.timestamp() * 1e6)
                rows = arrivals(items, self.ledgers[origin].epoch, stamp_us)
                found.setdefault(origin, []).extend(rows)
        now_us = time.time_ns() // 1_000
        for origin, items in self.due():
            if ledger := self.ledgers.get(origin):
                found.setdefault(origin, []).extend(arrivals(items, ledger.epoch, now_us))
        for origin, rows in found.items():
            self._write(origin, rows)
        self.progress.save()
        if batch:
            self.progress.next_in_stream = self.first_held(batch[-1].metadata.sequence.stream + 1)

    def _write(self, origin: str, rows: list[Arrival]) -> None:
        if rows and (writer := self.writers.get(origin) or self._begin(origin, rows)):
            table = writer.tables["messages"]
            write_now(table, of_arrivals(table.next_offset, rows), self._plan.rolling)
            for epoch, last in {row.epoch: row.number or 0 for row in rows}.items():
                self.progress.note(origin, epoch, last)
        ledger = self.ledgers[origin]
        self.progress.note(origin, ledger.epoch, ledger.next - 1)

    def _begin(self, origin: str, rows: list[Arrival]) -> RecordingWriter | None:
        """Under the host that the origin claims to be, for ever."""
        if len(self.writers) >= ORIGINS_MAX:
            self.report("origins", f"not recorded, as there are too many origins: {origin}")
            return None
        host = next((row.host for row in rows if _HOST.fullmatch(row.host)), origin)
        return self._open(RecorderIdentity.of(host, origin, self._stream))

    def _open(self, identity: RecorderIdentity) -> RecordingWriter:
        plan = self._plan
        writer = self._opened.enter_context(RecordingWriter(plan.directory, identity, plan.table))
        self.writers[identity.bus] = writer
        self.sealers.append(Sealer(plan.directory, writer.recorder))
        return writer


def link_of(channel: str, bridges: Configuration) -> Link:
    """What a durable channel crosses. Raises ConfigurationError."""
    for link in bridges.links.values():
        if channel in (*link.imports, *link.exports) and bridges.channels[channel].durable:
            return link
    raise ConfigurationError(f"no link has a durable channel {channel!r}")


def reached(home: Path) -> list[tuple[str, int]]:
    """The epochs of an origin's newest rows, in their order, and the last number of each."""
    for path in reversed(segment_file.segment_files(home, "messages")):
        end = segment_file.committed_end(path)
        if end == segment_file.first_offset(path):
            continue
        # What is damaged is left out; sealing reports it.
        if found := list(segment_file.read_batches(path, end - _NEWEST_ROWS, end, damaged=[])):
            epochs = pa.Table.from_batches(found).group_by("epoch")
            last = epochs.aggregate([("number", "max"), ("offset", "max")]).sort_by("offset_max")
            return [(row["epoch"], row["number_max"] or 0) for row in last.to_pylist()]
    return []


def _ignore(*_: Any, **__: Any) -> None:
    """Nothing but the stream is read."""
