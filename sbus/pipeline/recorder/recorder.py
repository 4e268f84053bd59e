"""The recorder: the tasks that receive what crosses a bus, and write it.

One task receives messages into a bounded buffer; another takes what is there, often, and writes it
in a thread, so receiving continues. Helper tasks maintain the recording, feed the service manager's
watchdog, publish probes and, with administrator rights, record clients and events. A helper that
fails reports it and is tried again; nothing else stops.

What has been committed stays, however the recorder ends. An orderly end also writes everything that
was published before it, and seals it. A recorder that continues a recording begins with a GAP row.
"""

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import trio

import sbus
from sbus.client.admin import AdminConnection
from sbus.client.options import LinkOptions
from sbus.errors import AddressError, BusError, SbusError, reason_of
from sbus.pipeline.recorder.admin_tables import AdminTables
from sbus.pipeline.recorder.buffer import Buffer, MonitorBuffer, PacketBuffer, write_out
from sbus.pipeline.recorder.maintenance import maintain
from sbus.pipeline.recorder.sources import MonitorSource, Source, SubscriptionSource
from sbus.pipeline.store.retention import Retention
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.schemas import PROBE_KEY_PREFIX
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.writer import RecordingWriter, Rolling
from sbus.protocol import admin
from sbus.protocol.admin_results import VersionResult
from sbus.unix.notify import Notifier

_DRAIN_SECONDS_MAX = 10.0
"""For receiving what was published before the recorder was asked to end."""
_SEAL_SECONDS_MAX = 20.0
_RETRY_SECONDS = 10.0
_EVENTS_BEGIN_SECONDS_MAX = 2.0
_PROBE_SECONDS = 1.0
_BUS_ERRORS = (AddressError, BusError, TimeoutError)
"""The bus is not there, has gone, refuses, or does not reply in time."""

Report = Callable[[str], None]
Helper = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is recorded and where, when it is written, and how long it is kept."""

    directory: Path
    identity: RecorderIdentity
    table: str | None
    """Where sealed rows go; None: to `directory`."""
    address: str | None
    options: LinkOptions
    patterns: Sequence[bytes]
    """None given: everything that the recorder may see."""
    connect_admin: Callable[[], AdminConnection] | None
    """None: do not use the admin socket."""
    probe: bool
    flush_seconds: float
    flush_rows: int
    snapshot_seconds: float
    rolling: Rolling
    retention: Retention


async def record(plan: Plan, notifier: Notifier, report: Report) -> None:
    """Record until SIGTERM or SIGINT. Raises SbusError when recording cannot begin or continue."""
    pa.array(())  # imports pandas where it is installed, which takes half a second
    with RecordingWriter(plan.directory, plan.identity, plan.table) as writer:
        sealer = Sealer(plan.directory, writer.recorder)
        recorder = _Recorder(plan, writer, sealer, notifier, report)
        await recorder.run()
        await seal_rest([writer], [sealer], report)


@dataclass(frozen=True, slots=True)
class _Recorder:
    plan: Plan
    writer: RecordingWriter
    sealer: Sealer
    notifier: Notifier
    report: Report

    async def run(self) -> None:
        buffer, source = await self._connect()
        with closing(source), trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            try:
                async with trio.open_nursery() as helpers:
                    receiving = trio.CancelScope()
                    helpers.start_soon(_cancel_at_signal, signals, receiving)
                    for helper in self._helpers():
                        helpers.start_soon(self._keep_running, helper)
                    if isinstance(source, MonitorSource):
                        await self._begin_admin_tables(helpers)
                    await self._record_messages(buffer, source, receiving)
                    helpers.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                raise reason_of(group) from None

    async def _connect(self) -> tuple[Buffer, Source]:
        """The best source that there is, connected."""
        plan = self.plan
        patterns = list(plan.patterns)
        if patterns and plan.probe:
            patterns.append(_probe_key(plan.identity.recorder))
        if plan.connect_admin is not None:
            try:
                connection = await trio.to_thread.run_sync(_connect_admin, plan.connect_admin)
            except _BUS_ERRORS as error:
                self.report(f"recording without publishers, clients and events: {error}")
            else:
                monitored = MonitorBuffer(plan.flush_rows)
                return monitored, MonitorSource(connection, patterns, monitored)
        packets = PacketBuffer(plan.flush_rows)
        source = SubscriptionSource(plan.address, plan.options, patterns or [b""], packets)
        try:
            await source.connect()
        except BaseException:
            source.close()
            raise
        return packets, source

    async def _record_messages(
        self, buffer: Buffer, source: Source, receiving: trio.CancelScope
    ) -> None:
        """Receive until `receiving` is cancelled or the bus ends; write all that was received."""
        plan = self.plan
        table = self.writer.tables["messages"]
        if table.next_offset:
            buffer.put_gap(None)
        failure: Exception | None = None
        async with trio.open_nursery() as writing:
            writing.start_soon(write_out, buffer, table, plan.rolling, plan.flush_seconds)
            try:
                await source.begin()
                self.report(f"recording to {self.writer.home}")
                self.notifier.ready(f"recording to {self.writer.home}")
                with receiving:
                    await source.receive()
                self.notifier.stopping("writing what is left")
                with trio.move_on_after(_DRAIN_SECONDS_MAX):
                    await source.catch_up()
            except _BUS_ERRORS as error:
                failure = error
            buffer.close()
        if failure is not None:
            raise failure

    def _helpers(self) -> list[Helper]:
        plan, recorder = self.plan, self.plan.identity.recorder
        helpers: list[Helper] = [partial(maintain, [self.sealer], plan.retention, self.report)]
        if self.notifier.watchdog_seconds is not None:
            helpers.append(partial(feed_watchdog, self.notifier, self.notifier.watchdog_seconds))
        if plan.probe:
            helpers.append(partial(_publish_probes, plan.address, plan.options, recorder))
        return helpers

    async def _begin_admin_tables(self, helpers: trio.Nursery) -> None:
        """Record clients and events. Events are recorded from the return of this method on, unless
        the bus is slow."""
        plan = self.plan
        assert plan.connect_admin is not None
        tables = AdminTables(plan.connect_admin, self.writer, plan.rolling, plan.snapshot_seconds)
        begun = trio.Event()
        helpers.start_soon(self._keep_running, tables.record_clients)
        helpers.start_soon(self._keep_running, partial(tables.record_events, begun.set))
        with trio.move_on_after(_EVENTS_BEGIN_SECONDS_MAX):
            await begun.wait()

    async def _keep_running(self, helper: Helper) -> None:
        """Run a helper, again whenever it fails; report each new reason once."""
        reported = ""
        while True:
            try:
                await helper()
            except _BUS_ERRORS as error:
                if str(error) != reported:
                    reported = str(error)
                    self.report(f"will be tried again: {reported}")
            await trio.sleep(_RETRY_SECONDS)


async def seal_rest(
    writers: Iterable[RecordingWriter], sealers: Iterable[Sealer], report: Report
) -> None:
    """Seal everything, unless that takes long; then the next recorder does it."""
    with trio.move_on_after(_SEAL_SECONDS_MAX):
        try:
            for writer in writers:
                writer.roll()
            for sealer in sealers:
                await trio.to_thread.run_sync(sealer.seal, abandon_on_cancel=True)
        except (SbusError, OSError) as error:
            report(f"the next recorder will seal the rest: {error}")


def _connect_admin(connect: Callable[[], AdminConnection]) -> AdminConnection:
    """A connection that is allowed to administer the bus."""
    connection = connect()
    try:
        connection.ask(admin.Version(), VersionResult)
    except BaseException:
        connection.close()
        raise
    return connection


async def _cancel_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


async def feed_watchdog(notifier: Notifier, watchdog_seconds: float) -> None:
    while True:
        notifier.alive()
        await trio.sleep(watchdog_seconds / 3)


def _probe_key(recorder: str) -> bytes:
    """The key of this recorder's probes; nobody else should publish under it."""
    return (PROBE_KEY_PREFIX + recorder).encode()


async def _publish_probes(address: str | None, options: LinkOptions, recorder: str) -> None:
    """Publish a message each second that holds its time of sending. The recorder receives it like
    any other, so the recording shows the latency of the whole way through the bus."""
    async with sbus.connect(address, **options) as bus:
        while True:
            await bus.publish(_probe_key(recorder), b"%d" % (time.time_ns() // 1000))
            await bus.sync()
            await trio.sleep(_PROBE_SECONDS)
