"""The supervisor: keeps a worker running under every number.

A worker that dies is reaped, and a new one is forked at once; one that dies soon after it was
forked is forked again after a growing delay. A worker whose heartbeat stops is killed, unless it
waits for the lock: then the worker that has the lock is to blame, and will be found silent too. One
is killed at a time: its death may let the others go on.

A service manager's watchdog is fed from here, because a bus that cannot replace a hung worker is
not well: the loop that looks at the heartbeats pings the fork server, and its answer feeds the
watchdog.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.fork_server import CLOSER, ForkServer, Pong, WorkerExited, WorkerForked
from sbus.broker.front.reaper import Reaper
from sbus.broker.front.supervised_worker import SupervisedWorker
from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.errors import SbusError
from sbus.limits import Limits
from sbus.protocol.events import WorkerDelayed, WorkerDied, WorkerSilent, WorkerStarted
from sbus.shared.shared_memory import SharedMemory
from sbus.unix.errno_sets import OUT_OF_RESOURCES, SOCKET_FULL
from sbus.unix.notify import Notifier

_QUEUE_RETRY_SECONDS = 0.005
_COMMAND_BYTES = 768
"""What a small command takes of the kernel's memory until its worker reads it."""
EARLY_DEATH_SECONDS = 1.0
_RESTART_DELAY_SECONDS_MIN = 0.1
_RESTART_DELAY_SECONDS_MAX = 5.0
_KEPT_SECONDS_MAX = 0.4
"""Of a delay in which the log is kept for a worker, since publishers may have to wait as long."""


class WorkerObserver(Protocol):
    """What a supervisor reports about its workers."""

    def worker_forked(self, worker: int) -> None:
        """A worker was asked for: it can be sent commands, and has no clients yet."""

    def closer_event(self, event: WorkerForked | WorkerExited) -> None:
        """A closer was forked, or has ended."""

    def worker_event(self, worker: int, event: protocol.WorkerEvent) -> None:
        """A worker sent an event."""

    async def worker_died(self, worker: int) -> None:
        """A worker has died and was reaped, and this was its last event. Its successor is forked
        when this returns."""


class Supervisor:
    """Starts, watches and stops the workers of one bus."""

    def __init__(
        self,
        fork_server: ForkServer,
        memory: SharedMemory,
        reaper: Reaper,
        settings: BusSettings,
        events: EventEmitter,
        notifier: Notifier,
    ) -> None:
        self._fork_server = fork_server
        self._memory = memory
        self._reaper = reaper
        self._limits = settings.limits
        self._events = events
        self._notifier = notifier
        self.workers = [SupervisedWorker(number) for number in range(settings.workers)]
        self._settings_number = 0
        self._settings_memfd: int | None = None
        """None for the settings of the start."""
        self._ping_is_open = False
        self._pinged_at = -math.inf
        self._has_started = False
        self._replaces = trio.Event()
        self._is_stopping = False
        self._changed = trio.lowlevel.ParkingLot()

    async def run(self, nursery: trio.Nursery, observer: WorkerObserver) -> None:
        """Start all workers; returns once they have started, leaving tasks in `nursery`.

        Raises SbusError when one dies before `start_replacing`.
        """
        self._nursery = nursery
        self._observer = observer
        nursery.start_soon(self._watch_fork_server)
        for worker in self.workers:
            self._fork(worker)
        await self._wait_for(lambda: all(worker.has_started for worker in self.workers))
        nursery.start_soon(self._watch_heartbeats)

    def delay_replacing(self) -> None:
        """From now on a worker that dies is replaced, but only once `start_replacing` is called."""
        self._has_started = True

    def start_replacing(self) -> None:
        """From now on a worker that dies is replaced. Before this, the bus cannot start."""
        self._has_started = True
        self._replaces.set()

    async def wait_for_successors(self) -> None:
        """Wait until all successors of workers that have died serve their clients."""
        await self._wait_for(lambda: not any(worker.is_succeeding for worker in self.workers))

    def stop_replacing(self) -> None:
        """From now on no worker is replaced."""
        self._is_stopping = True

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.park()

    # -- processes -----------------------------------------------------------------------------
    def _fork(self, worker: SupervisedWorker) -> None:
        worker.forked_at = time.monotonic()
        try:
            link_socket = self._fork_server.fork_worker(worker.number)
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES | SOCKET_FULL:
                raise
            self._events.emit(WorkerDelayed(worker=worker.number, why=os.strerror(error.errno)))
            self._delay_restart(worker)
            self._nursery.start_soon(self._restart, worker)
            return
        worker.link = WorkerLink(link_socket, self._nursery)
        self._memory.record_heartbeat(worker.number)
        self._send_settings(worker)
        worker.settings_number = self._settings_number  # it applies them before it has clients
        self._nursery.start_soon(self._receive_events, worker, worker.link)
        self._observer.worker_forked(worker.number)

    async def _receive_events(self, worker: SupervisedWorker, link: WorkerLink) -> None:
        while (event := await link.wait_for_event()) is not None:
            self._on_event(worker, event)

    def _on_event(self, worker: SupervisedWorker, event: protocol.WorkerEvent) -> None:
        worker.note(event)
        if isinstance(event, protocol.WorkerReady):
            self._emit_started(worker)
        self._observer.worker_event(worker.number, event)
        self._changed.unpark_all()

    async def _watch_fork_server(self) -> None:
        while True:
            try:
                event = self._fork_server.receive()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fork_server.sock)
                continue
            if event is None:
                self.kill_all()
                raise SbusError("the fork server died: no worker can be started any more")
            if isinstance(event, Pong):
                self._ping_is_open = False
                self._notifier.alive()
                continue
            if event.worker == CLOSER:
                self._observer.closer_event(event)
                continue
            worker = self.workers[event.worker]
            if isinstance(event, WorkerForked):
                worker.pid, worker.pidfd = event.pid, event.pidfd
                self._emit_started(worker)
            else:
                self._handle_exit(worker, event.status)
            self._changed.unpark_all()

    def _emit_started(self, worker: SupervisedWorker) -> None:
        """A worker has started when it says so and its pid is known."""
        if worker.has_started and worker.pid:
            self._events.emit(WorkerStarted(worker=worker.number, worker_pid=worker.pid))

    def _handle_exit(self, worker: SupervisedWorker, status: int) -> None:
        worker.deaths += 1
        if worker.link is not None:
            for event in worker.link.unread_events():
                self._on_event(worker, event)
            worker.link.close()
            worker.link = None
        worker.note_exit()
        if worker.pidfd >= 0:
            os.close(worker.pidfd)
            worker.pidfd = -1
        if self._is_stopping:
            return
        how = f"signal {-code}" if (code := os.waitstatus_to_exitcode(status)) < 0 else f"{code}"
        self._events.emit(WorkerDied(worker=worker.number, worker_pid=worker.pid, how=how))
        worker.pid = 0
        if not self._has_started:
            raise SbusError(f"worker {worker.number} did not start")
        self._delay_restart(worker)
        self._nursery.start_soon(self._replace, worker)

    async def _replace(self, worker: SupervisedWorker) -> None:
        await self._reaper.reap(worker.number)
        await self._observer.worker_died(worker.number)
        await self._restart(worker)

    def _delay_restart(self, worker: SupervisedWorker) -> None:
        """Decide after which time a worker is forked again that has just ended."""
        if worker.age_seconds < EARLY_DEATH_SECONDS:
            delay_seconds = max(_RESTART_DELAY_SECONDS_MIN, 2 * worker.restart_delay_seconds)
            worker.restart_delay_seconds = min(delay_seconds, _RESTART_DELAY_SECONDS_MAX)
        else:
            worker.restart_delay_seconds = 0.0

    async def _restart(self, worker: SupervisedWorker) -> None:
        if self._has_started:
            await self._replaces.wait()
        if worker.restart_delay_seconds > _KEPT_SECONDS_MAX:
            await self._reaper.release_log(worker.number)
        if worker.restart_delay_seconds:
            await trio.sleep(worker.restart_delay_seconds)
        if not self._is_stopping:
            self._fork(worker)

    def kill_all(self) -> None:
        """Kill all workers: nobody else touches the sockets of clients from now on."""
        for worker in self.workers:
            worker.kill()
            if worker.link is not None:  # the front ends the clients, whatever it has said of them
                worker.link.close()
                worker.link = None

    # -- heartbeats ----------------------------------------------------------------------------
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
            # A longer sleep: the front was stopped, and perhaps the workers too. Give them time.
            if time.monotonic() - asleep_at <= 2 * interval:
                self._kill_most_silent()

    def _ping_fork_server(self, seconds_min: float) -> None:
        """Feed the watchdog through the fork server, unless that was done in the last `seconds_min`
        or a ping is unanswered."""
        now = trio.current_time()
        if not self._ping_is_open and now >= self._pinged_at + seconds_min:
            with suppress(BlockingIOError):
                self._fork_server.ping()
                self._ping_is_open = True
                self._pinged_at = now

    def _kill_most_silent(self) -> None:
        """Kill the worker that has been silent for longest, for too long, and without waiting for
        the lock."""
        silence_seconds = self._memory.silence_seconds
        silent = [
            worker
            for worker in self.workers
            if worker.is_running
            and silence_seconds(worker.number) > self._limits.worker_silence_seconds_max
        ]
        waiting = self._memory.lock.waiters() if silent else set()
        culprits = [worker for worker in silent if worker.pid not in waiting]
        if culprits:
            worker = max(culprits, key=lambda it: silence_seconds(it.number))
            self._events.emit(WorkerSilent(worker=worker.number, worker_pid=worker.pid))
            worker.kill()

    # -- settings ------------------------------------------------------------------------------
    def distribute_settings(self, limits: Limits, memfd: int) -> None:
        """Have all workers, also those that are forked later, apply the settings in this memfd,
        which is taken. `limits` are theirs."""
        if self._settings_memfd is not None:
            os.close(self._settings_memfd)
        self._settings_memfd = memfd
        self._settings_number += 1
        self._limits = limits
        for worker in self.workers:
            self._send_settings(worker)

    def _send_settings(self, worker: SupervisedWorker) -> None:
        if worker.link is not None and self._settings_memfd is not None:
            command = protocol.ApplySettings(self._settings_number)
            worker.link.send(command, self._settings_memfd)

    async def wait_until_settings_applied(self, seconds_max: float) -> list[int]:
        """Wait until all workers have applied the settings in force; returns those that have not
        in time."""
        with trio.move_on_after(seconds_max):
            await self._wait_for(lambda: not self._workers_without_settings())
        return self._workers_without_settings()

    def _workers_without_settings(self) -> list[int]:
        return [
            worker.number
            for worker in self.workers
            if worker.is_running and worker.settings_number < self._settings_number
        ]

    # -- commands ------------------------------------------------------------------------------
    def running_workers(self) -> list[int]:
        """The workers that can be sent a command: asked for, and not dead."""
        return [worker.number for worker in self.workers if worker.is_running]

    def ended_workers(self) -> list[int]:
        """Those of them that have ended, which the fork server has not reported yet."""
        return [worker.number for worker in self.workers if worker.has_ended]

    def send(self, worker: int, command: protocol.WorkerCommand, fd: int | None = None) -> None:
        """Send a worker a command, if it runs. Borrows `fd`."""
        link = self.workers[worker].link
        if link is not None:
            link.send(command, fd)

    def _send_all(self, command: protocol.WorkerCommand) -> None:
        for number in self.running_workers():
            self.send(number, command)

    async def wait_for_available_workers(self) -> list[int]:
        """The workers that serve and keep up with their commands, once there is one. What is behind
        waits here, where users have turns, and not in the worker's link."""
        unread_bytes_max = self._limits.handoff_clients_max * _COMMAND_BYTES
        while True:
            available = [
                worker.number
                for worker in self.workers
                if worker.is_serving
                and worker.link is not None
                and not worker.link.queued
                and worker.link.unread_bytes() < unread_bytes_max
            ]
            if available:
                return available
            with trio.move_on_after(_QUEUE_RETRY_SECONDS):
                await self._wait_for(lambda: any(worker.is_serving for worker in self.workers))
                await trio.sleep_forever()

    async def end_silently(self) -> None:
        """Have the workers end without a word to their clients, which another bus serves."""
        self._is_stopping = True
        self._send_all(protocol.EndSilently())
        with trio.move_on_after(self._limits.stop_seconds_max):
            await self._wait_for(lambda: not self.running_workers())
        self.kill_all()

    async def stop(self, code: str) -> None:
        """Have the workers hand over what they accepted, tell clients this code, and end; kill
        those that do not in time."""
        self._is_stopping = True
        with trio.move_on_after(self._limits.stop_seconds_max):
            self._send_all(protocol.Quiesce())
            await self._wait_for(
                lambda: all(w.has_quiesced or not w.is_running for w in self.workers)
            )
            self._send_all(protocol.Stop(code))
            await self._wait_for(lambda: not self.running_workers())
            return
        self.kill_all()
