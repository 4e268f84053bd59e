"""The recorder: receives what crosses a bus, and writes it down.

Tasks of one trio loop. One receives, into a bounded line, and another takes from it what is there,
often, and has it written in a thread, so that receiving goes on meanwhile. Helpers keep the
recording in order, tell the service manager that all is well and, with the right to administer the
bus, record its clients and events. A helper that fails says so and costs nothing else.

What has been committed stays, whatever ends the recorder. A clean end writes all that was published
before it, too. A recorder that begins where another ended says so with a GAP row.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from sbus.client.admin import AdminConnection
from sbus.client.link import LinkOptions
from sbus.errors import AddressError, BusError, SbusError
from sbus.pipeline.housekeeper import keep_house
from sbus.pipeline.housekeeping import Keeping
from sbus.pipeline.monitoring import MonitorSource
from sbus.pipeline.observing import record_clients, record_events
from sbus.pipeline.pending import Pending, PendingMonitored, PendingPackets
from sbus.pipeline.probes import probe_key
from sbus.pipeline.probing import probe
from sbus.pipeline.store import Origin, Rolling, Store
from sbus.pipeline.subscription import Subscription
from sbus.pipeline.writing import write_pending
from sbus.protocol import admin
from sbus.protocol.admin_results import VersionResult
from sbus.unix.notify import Notifier

_DRAIN_SECONDS_MAX = 10.0
"""For receiving what was published before the end was asked for."""
_RETRY_SECONDS = 10.0
_EVENTS_BEGIN_SECONDS_MAX = 2.0
_UNANSWERED = (AddressError, BusError, TimeoutError)
"""The bus is not there, has gone, says no, or says nothing for too long."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is recorded, where to, when what is written, and for how long it is kept."""

    directory: Path
    origin: Origin
    address: str | None
    options: LinkOptions
    patterns: Sequence[bytes]
    """None given: everything that may be seen."""
    connect_admin: Callable[[], AdminConnection] | None
    """None: do without the admin socket."""
    probe: bool
    flush_seconds: float
    flush_rows: int
    snapshot_seconds: float
    rolling: Rolling
    keeping: Keeping


class Source(Protocol):
    """Where messages come from, connected; they go into the line that it was made with."""

    async def begin(self) -> None:
        """What is published after this returns is received."""
        ...

    async def receive(self) -> None:
        """Go on until cancelled, whereby nothing is lost."""
        ...

    async def catch_up(self) -> None:
        """Receive what was published before."""
        ...

    def close(self) -> None: ...


async def record(plan: Plan, notifier: Notifier, say: Say) -> None:
    """Record until SIGTERM or SIGINT. Raises SbusError when it cannot begin or go on."""
    with Store(plan.directory, plan.origin) as store:
        pending, source, is_admin = await _connect(plan, say)
        with closing(source), trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            try:
                async with trio.open_nursery() as helpers:
                    ask_to_end = trio.CancelScope()
                    helpers.start_soon(_cancel_when_asked, signals, ask_to_end)
                    for helper in _helpers(plan, store, notifier, is_admin, say):
                        helpers.start_soon(_help, helper, say)
                    if is_admin:
                        await _begin_events(plan, store, helpers, say)
                    await _record_messages(plan, store, pending, source, ask_to_end, notifier, say)
                    helpers.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                raise _reason(group) from None


async def _connect(plan: Plan, say: Say) -> tuple[Pending, Source, bool]:
    """The source with the most to tell, and whether that is the admin socket."""
    patterns = list(plan.patterns)
    if patterns and plan.probe:
        patterns.append(probe_key(plan.origin.recorder))
    if plan.connect_admin is not None:
        try:
            connection = await trio.to_thread.run_sync(_connect_admin, plan.connect_admin)
        except _UNANSWERED as error:
            say(f"recording without publishers, clients and events: {error}")
        else:
            monitored = PendingMonitored(plan.flush_rows)
            return monitored, MonitorSource(connection, patterns, monitored), True
    packets = PendingPackets(plan.flush_rows)
    subscription = Subscription(plan.address, plan.options, patterns or [b""], packets)
    try:
        await subscription.connect()
    except BaseException:
        subscription.close()
        raise
    return packets, subscription, False


def _connect_admin(connect: Callable[[], AdminConnection]) -> AdminConnection:
    connection = connect()
    try:
        connection.ask(admin.Version(), VersionResult)
    except BaseException:
        connection.close()
        raise
    return connection


async def _record_messages(
    plan: Plan,
    store: Store,
    pending: Pending,
    source: Source,
    ask_to_end: trio.CancelScope,
    notifier: Notifier,
    say: Say,
) -> None:
    """Receive until asked to end, or the bus ends; all that was received is written."""
    log = store.tables["messages"]
    if log.next_offset:
        pending.put_gap(None)
    failure: Exception | None = None
    async with trio.open_nursery() as writing:
        writing.start_soon(
            write_pending, log, pending, plan.origin, plan.rolling, plan.flush_seconds
        )
        try:
            await source.begin()
            say(f"recording to {store.home}")
            notifier.ready(f"recording to {store.home}")
            with ask_to_end:
                await source.receive()
            notifier.stopping("writing what is left")
            with trio.move_on_after(_DRAIN_SECONDS_MAX):
                await source.catch_up()
        except _UNANSWERED as error:
            failure = error
        pending.close()
    if failure is not None:
        raise failure


async def _cancel_when_asked(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


# -- helpers ---------------------------------------------------------------------------------------
Helper = Callable[[], Awaitable[None]]


def _helpers(
    plan: Plan, store: Store, notifier: Notifier, is_admin: bool, say: Say
) -> list[Helper]:
    helpers: list[Helper] = [
        partial(keep_house, plan.directory, plan.origin.recorder, plan.keeping, say)
    ]
    if notifier.watchdog_seconds is not None:
        helpers.append(partial(_show_life, notifier, notifier.watchdog_seconds))
    if plan.probe:
        helpers.append(partial(probe, plan.address, plan.options, plan.origin.recorder))
    if is_admin and plan.connect_admin is not None:
        clients = store.tables["clients"]
        watched = (plan.connect_admin, plan.origin, clients, plan.rolling)
        helpers.append(partial(record_clients, *watched, plan.snapshot_seconds))
    return helpers


async def _begin_events(plan: Plan, store: Store, helpers: trio.Nursery, say: Say) -> None:
    """Have events recorded; what happens after this returns is, unless the bus takes its time."""
    assert plan.connect_admin is not None
    begun = trio.Event()
    watched = (plan.connect_admin, plan.origin, store.tables["events"], plan.rolling)
    helper = partial(record_events, *watched, plan.snapshot_seconds, begun.set)
    helpers.start_soon(_help, helper, say)
    with trio.move_on_after(_EVENTS_BEGIN_SECONDS_MAX):
        await begun.wait()


async def _help(helper: Helper, say: Say) -> None:
    """Let it help, again and again where it fails; the same reason is said once."""
    said = ""
    while True:
        try:
            await helper()
        except _UNANSWERED as error:
            if str(error) != said:
                said = str(error)
                say(f"will be tried again: {said}")
        await trio.sleep(_RETRY_SECONDS)


async def _show_life(notifier: Notifier, watchdog_seconds: float) -> None:
    while True:
        notifier.alive()
        await trio.sleep(watchdog_seconds / 3)


def _reason(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to be told, if nothing but our own are in the group; else the group."""
    expected, unexpected = group.split(SbusError)
    if unexpected is not None or expected is None:
        return group
    error: BaseException = expected
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
