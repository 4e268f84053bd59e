"""The supervisor: keeps a living worker in every slot.

A worker that dies is reaped (what was destined to it, and its stalled clients, hold nobody back;
what it had counted is taken off the accounts), its clients are given up, and a new one is forked at
once; one that dies young is forked again after a growing pause.

A worker whose heartbeat stops is killed, unless it waits for the lock: then the worker that has the
lock is to blame, and will be found silent too. One is killed at a time, because the others may
recover by it.

Where a service manager watches over the front, it is told that all is well from here, because a bus
that cannot replace a hung worker is not well: whenever that is due, the loop that looks at the
heartbeats pings the fork server, and its answer is what the manager is told.

The front never waits for the lock, it tries; so neither a worker that stopped while holding it nor
one that died can stop the supervisor. This module does not know what clients are, beyond telling
whose worker died.
"""

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.bounded_lock import trying
from sbus.broker.front.fork_server import ForkServer, Pong, WorkerForked
from sbus.broker.ipc.link import Link
from sbus.broker.ipc.worker_protocol import (
    ApplySettings,
    Quiesce,
    SettingsApplied,
    Stop,
    WorkerCommand,
    WorkerEvent,
    WorkerQuiesced,
    WorkerReady,
)
from sbus.errors import SbusError
from sbus.limits import Limits
from sbus.protocol.events import WorkerDelayed, WorkerDied, WorkerSilent, WorkerStarted
from sbus.shared import worker_statistics
from sbus.shared.accounts import AccountBook
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.unix.errno_sets import OUT_OF_RESOURCES
from sbus.unix.notify import Notifier

_QUEUE_RETRY_SECONDS = 0.05
_YOUNG_SECONDS = 1.0
_PAUSE_SECONDS_MAX = 5.0


class WorkerSlot:
    """One worker's place."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.link: Link | None = None
        self.pid = 0
        self.pidfd = -1
        self.alive = False
        """It was asked for, and has not died."""
        self.ready = False
        self.quiet = False
        self.obeyed = 0
        """The number of the settings it goes by; 0 for those of the start."""
        self.born_at = 0.0
        self.deaths = 0
        self.pause_seconds = 0.0

    def kill(self) -> None:
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):  # its death is on the way to us
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class Supervisor:
    """All slots of a bus. `on_fork` gets the number of a worker that was just asked for and can be
    told something, `on_report` what workers say, `on_death` who of them died."""

    def __init__(
        self,
        fork_server: ForkServer,
        memory: SharedMemory,
        settings: BusSettings,
        book: AccountBook,
        events: EventEmitter,
        on_fork: Callable[[int], None],
        on_report: Callable[[int, WorkerEvent], None],
        on_death: Callable[[int], None],
        notifier: Notifier,
    ) -> None:
        self._fork_server = fork_server
        self._memory = memory
        self._limits = settings.limits
        self._events = events
        self._on_fork = on_fork
        self._on_report = on_report
        self._on_death = on_death
        self._notifier = notifier
        self._ping_is_open = False
        self._pinged_at = -math.inf
        self._log = OrderedLog(memory)
        self._book = book
        self.stalls = StallTable(memory.stalls, settings.limits.blocking_clients_max, None)
        self.slots = [WorkerSlot(number) for number in range(settings.workers)]
        self._settings_number = 0
        self._settings_memfds: list[int] = []
        """The last one is in force; others may be on their way to somebody who is slow."""
        self._serving = False
        self._stopping = False
        self._changed = trio.Event()

    async def run(self, nursery: trio.Nursery) -> None:
        """Start all workers; returns once they serve, leaving tasks in `nursery`.

        Raises SbusError when one dies before that.
        """
        self._nursery = nursery
        nursery.start_soon(self._watch_fork_server)
        for slot in self.slots:
            self._fork(slot)
        await self._wait_for(lambda: all(slot.ready for slot in self.slots))
        self._serving = True
        nursery.start_soon(self._watch_heartbeats)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _tell_waiters(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # -- lives ---------------------------------------------------------------------------------
    def _fork(self, slot: WorkerSlot) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES:
                raise
            self._events.emit(WorkerDelayed(worker=slot.number, why=error.strerror or str(error)))
            slot.born_at = time.monotonic()
            self._nursery.start_soon(self._replace, slot)
            return
        slot.link = Link(ours, self._nursery)
        slot.alive = True
        slot.born_at = time.monotonic()
        self._memory.record_heartbeat(slot.number)
        self._fork_server.fork_worker(slot.number, theirs)
        self._tell_settings(slot)
        slot.obeyed = self._settings_number  # it has them before it has clients
        self._nursery.start_soon(self._hear, slot, slot.link)
        self._on_fork(slot.number)

    async def _hear(self, slot: WorkerSlot, link: Link) -> None:
        """Pass on what one worker says, until it says no more."""
        while slot.link is link:
            try:
                report = link.receive_event()
            except BlockingIOError:
                try:
                    await link.wait()
                except trio.ClosedResourceError:
                    return
                continue
            if report is None:
                return
            if isinstance(report, WorkerReady):
                slot.ready = True
                self._tell_started(slot)
            elif isinstance(report, WorkerQuiesced):
                slot.quiet = True
            elif isinstance(report, SettingsApplied):
                slot.obeyed = max(slot.obeyed, report.number)
            else:
                self._on_report(slot.number, report)
            self._tell_waiters()

    async def _watch_fork_server(self) -> None:
        while True:
            try:
                event = self._fork_server.receive()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fork_server.sock)
                continue
            if event is None:
                for slot in self.slots:
                    slot.kill()
                raise SbusError("the fork server died: no worker can be started any more")
            if isinstance(event, Pong):
                self._ping_is_open = False
                self._notifier.alive()
                continue
            slot = self.slots[event.worker]
            if isinstance(event, WorkerForked):
                slot.pid, slot.pidfd = event.pid, event.pidfd
                self._tell_started(slot)
            else:
                await self._reap(slot, event.status)
            self._tell_waiters()

    def _tell_started(self, slot: WorkerSlot) -> None:
        """Tell that a worker serves, once it has said so and its birth has been heard of."""
        if slot.ready and slot.pid:
            self._events.emit(WorkerStarted(worker=slot.number, worker_pid=slot.pid))

    async def _reap(self, slot: WorkerSlot, status: int) -> None:
        slot.alive = False
        slot.deaths += 1
        if slot.pidfd >= 0:
            os.close(slot.pidfd)
            slot.pidfd = -1
        if slot.link is not None:
            slot.link.close()
            slot.link = None
        if self._stopping:
            return
        how = f"signal {-code}" if (code := os.waitstatus_to_exitcode(status)) < 0 else f"{code}"
        self._events.emit(WorkerDied(worker=slot.number, worker_pid=slot.pid, how=how))
        slot.pid = 0
        if not self._serving:
            raise SbusError(f"worker {slot.number} did not start")
        slot.ready = False
        async with trying(self._memory.lock) as words:
            self._log.reap(words, slot.number)
            self.stalls.reap(slot.number)
            self._book.reap(slot.number, time.monotonic_ns())
            worker_statistics.reap(self._memory.statistics, slot.number)
        # It may have died between taking somebody's sleep and waking it, so all look again.
        self._memory.wake((1 << len(self.slots)) - 1)
        self._on_death(slot.number)
        self._nursery.start_soon(self._replace, slot)

    async def _replace(self, slot: WorkerSlot) -> None:
        if time.monotonic() - slot.born_at < _YOUNG_SECONDS:
            slot.pause_seconds = min(max(0.1, 2 * slot.pause_seconds), _PAUSE_SECONDS_MAX)
            await trio.sleep(slot.pause_seconds)
        else:
            slot.pause_seconds = 0.0
        if not self._stopping:
            self._fork(slot)

    async def _watch_heartbeats(self) -> None:
        interval = self._limits.heartbeat_seconds
        watchdog_seconds = self._notifier.watchdog_seconds
        if watchdog_seconds is not None:
            interval = min(interval, watchdog_seconds / 2)
        while True:
            if watchdog_seconds is not None:
                self._ping_fork_server(watchdog_seconds / 2 - interval)
            asleep_at = time.monotonic()
            await trio.sleep(interval)
            if time.monotonic() - asleep_at > 2 * interval:
                # The front itself was stopped, and perhaps the workers too: give them time.
                continue
            silent = [
                slot
                for slot in self.slots
                if slot.alive
                and self._silence_seconds(slot) > self._limits.worker_silence_seconds_max
            ]
            waiting = self._memory.lock.waiters() if silent else set()
            culprits = [slot for slot in silent if slot.pid not in waiting]
            if culprits:
                slot = max(culprits, key=self._silence_seconds)
                self._events.emit(WorkerSilent(worker=slot.number, worker_pid=slot.pid))
                slot.kill()

    def _ping_fork_server(self, seconds_min: float) -> None:
        """Feed the watchdog through the fork server, unless that was done in the last `seconds_min`
        or it has not answered yet."""
        now = trio.current_time()
        if not self._ping_is_open and now >= self._pinged_at + seconds_min:
            self._ping_is_open = True
            self._pinged_at = now
            self._fork_server.ping()

    def _silence_seconds(self, slot: WorkerSlot) -> float:
        return self._memory.silence_seconds(slot.number)

    # -- settings ------------------------------------------------------------------------------
    def reconfigure(self, limits: Limits, memfd: int) -> None:
        """Tell all workers, and those that are forked from now on, to go by other settings: those
        that this memfd holds, which is taken. `limits` are theirs."""
        self._settings_memfds.append(memfd)
        self._settings_number += 1
        self._limits = limits
        for slot in self.slots:
            self._tell_settings(slot)

    def _tell_settings(self, slot: WorkerSlot) -> None:
        if slot.link is not None and self._settings_memfds:
            slot.link.send(ApplySettings(self._settings_number), self._settings_memfds[-1])

    async def wait_until_reconfigured(self, seconds_max: float) -> list[int]:
        """Wait until all workers go by the settings in force; returns who did not say so."""
        with trio.move_on_after(seconds_max):
            await self._wait_for(lambda: not self._behind())
        behind = self._behind()
        if not behind:
            for memfd in self._settings_memfds[:-1]:
                os.close(memfd)
            del self._settings_memfds[:-1]
        return behind

    def _behind(self) -> list[int]:
        return [
            slot.number for slot in self.slots if slot.alive and slot.obeyed < self._settings_number
        ]

    # -- the end -------------------------------------------------------------------------------
    async def stop(self) -> None:
        """Let the workers hand over what they accepted and end; kill those that do not."""
        self._stopping = True
        with trio.move_on_after(self._limits.stop_seconds_max):
            self.tell_all(Quiesce())
            await self._wait_for(lambda: all(slot.quiet or not slot.alive for slot in self.slots))
            self.tell_all(Stop())
            await self._wait_for(lambda: not any(slot.alive for slot in self.slots))
            return
        for slot in self.slots:
            slot.kill()

    async def wait_for_worker(self, load: list[int]) -> int:
        """The worker with the smallest load that serves and keeps up with what it is told."""
        while True:
            able = [
                slot.number
                for slot in self.slots
                if slot.ready
                and slot.link is not None
                and slot.link.queued < self._limits.handoff_clients_max
            ]
            if able:
                return min(able, key=load.__getitem__)
            with trio.move_on_after(_QUEUE_RETRY_SECONDS):
                await self._wait_for(lambda: any(slot.ready for slot in self.slots))
                await trio.sleep_forever()

    def who_can_be_told(self) -> list[int]:
        """The workers that have been asked for and have not died."""
        return [slot.number for slot in self.slots if slot.link is not None]

    def tell(self, worker: int, order: WorkerCommand, fd: int | None = None) -> None:
        """Tell one worker something, if there is one; `fd` is borrowed until it is sent."""
        link = self.slots[worker].link
        if link is not None:
            link.send(order, fd)

    def tell_all(self, order: WorkerCommand) -> None:
        for slot in self.slots:
            if slot.link is not None:
                slot.link.send(order)
