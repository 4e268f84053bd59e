"""The recorder: receives what crosses a bus, and writes it down.

Tasks of one trio loop: one receives, into a bounded line; one takes from it what is there every
`flush_seconds`, or earlier when it is much, and has it written in a thread, so that receiving goes
on meanwhile. Another makes Parquet of what is complete and drops what is old. With the right to
administer the bus there are two more, for snapshots of its clients and for its events.

What has been committed stays, whatever ends the recorder. A clean end writes all that was published
before it, too. A recorder that begins where another ended says so with a GAP row.
"""

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import trio

from sbus.client.link import LinkOptions
from sbus.errors import BusError, SbusError
from sbus.pipeline.pending import Pending, PendingPackets
from sbus.pipeline.store import Origin, Rolling, Store
from sbus.pipeline.subscription import Subscription
from sbus.pipeline.writing import write_pending
from sbus.unix.notify import Notifier

_DRAIN_SECONDS_MAX = 10.0
"""For receiving what was published before the end was asked for."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is recorded, where to, and when what is written."""

    directory: Path
    origin: Origin
    address: str | None
    patterns: Sequence[bytes]
    options: LinkOptions
    flush_seconds: float
    flush_rows: int
    rolling: Rolling


class Source(Protocol):
    """Where messages come from; they go into the line that it was made with."""

    async def connect(self) -> None: ...

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
        pending = PendingPackets(plan.flush_rows)
        source = Subscription(plan.address, plan.options, plan.patterns, pending)
        try:
            await _run(plan, store, source, pending, notifier, say)
        except BaseExceptionGroup as group:
            raise _reason(group) from None
        finally:
            source.close()


async def _run(
    plan: Plan, store: Store, source: Source, pending: Pending, notifier: Notifier, say: Say
) -> None:
    failure: BusError | None = None
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        await source.connect()
        async with trio.open_nursery() as helpers:
            asked_to_end = trio.CancelScope()
            helpers.start_soon(_cancel_when_asked, signals, asked_to_end)
            async with trio.open_nursery() as writing:
                log = store.tables["messages"]
                if log.next_offset:
                    pending.put_gap(None)
                writing.start_soon(
                    write_pending, log, pending, plan.origin, plan.rolling, plan.flush_seconds
                )
                try:
                    await source.begin()
                    say(f"recording to {store.home}")
                    notifier.ready(f"recording to {store.home}")
                    with asked_to_end:
                        await source.receive()
                    notifier.stopping("writing what is left")
                    with trio.move_on_after(_DRAIN_SECONDS_MAX):
                        await source.catch_up()
                except BusError as error:
                    failure = error
                pending.close()
            helpers.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _cancel_when_asked(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


def _reason(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to be told, if nothing but our own are in the group; else the group."""
    expected, unexpected = group.split(SbusError)
    if unexpected is not None or expected is None:
        return group
    error: BaseException = expected
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
