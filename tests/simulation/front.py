"""The front of a simulated bus: admission, succession, moves and compaction.

Succession, reaping and moves are the product's own. The supervisor here forks nothing: it makes
simulated workers. The front runs in trio's loop between the steps of the simulation; it never waits
for the lock.
"""

import math
import random
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.admission import adoption
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.culprits import Culprits
from sbus.broker.front.mover import ClientMover, MoveEvent
from sbus.broker.front.reaper import Reaper
from sbus.broker.front.succession import Succession
from sbus.broker.front.supervised_worker import SupervisedWorker
from sbus.broker.front.table_compactor import keep_table_compact
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import (
    ClientLeft,
    TakeOver,
    TookOver,
    WorkerCommand,
    WorkerEvent,
)
from sbus.shared.account_book import AccountBook
from sbus.shared.client_slots import ClientSlots
from sbus.shared.in_flight import InFlight
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import ALIVE, COMPACTION_WANTED, LOG_HEAD, SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.unix.credentials import Credentials
from sbus.unix.fd_passing import dup_socket
from tests.history.log import Entries
from tests.simulation.plan import user_of
from tests.simulation.workers import SimulatedLock, SimulatedWorker
from tests.support.events import logging_to


class SimulatedNumber(SupervisedWorker):
    """What the front has of the worker with one number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.process: SimulatedWorker | None = None
        self.is_first = True

    @property
    def age_seconds(self) -> float:
        """Deaths are not the fault of clients."""
        return math.inf


class SimulatedFront:
    """Of one bus. Also what succession and moves take for a supervisor, the policy about
    connections, and departure."""

    def __init__(
        self,
        nursery: trio.Nursery,
        memory: SharedMemory,
        settings: BusSettings,
        chance: random.Random,
        log: Entries,
    ) -> None:
        limits = settings.limits
        self._nursery = nursery
        self._memory = memory
        self._settings = settings
        self._chance = chance
        self._log = log
        self.workers = [SimulatedNumber(number) for number in range(settings.workers)]
        self.book = AccountBook(memory.accounts, settings.workers, limits)
        stalls = StallTable(memory.stalls, limits.blocking_clients_max, None)
        self._reaper = Reaper(memory, self.book, stalls)
        self.log = OrderedLog(memory)
        self.registry = ClientRegistry(settings.workers, ClientSlots(memory.client_slots))
        own, events = cast("Any", self), logging_to([])
        culprits = Culprits(memory, own, self.registry, own, events)
        self._succession = Succession(nursery, own, own, self.registry, culprits, events)
        self._mover = ClientMover(nursery, own, own, self.registry, own, events)
        nursery.start_soon(keep_table_compact, memory)
        self.tasks = 0
        """Deaths and moves that are not dealt with yet."""
        self.gone: dict[int, str] = {}
        """Why clients have gone."""
        self.kept_nothing = 0
        """Deaths after which the log was not kept for the successor."""
        self.moved = 0

    # -- workers -------------------------------------------------------------------------------
    def fork(self, number: int) -> None:
        """Make the worker of this number; a successor begins once its clients are sent."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = self.workers[number]
        worker.link = WorkerLink(ours, self._nursery)
        worker.process = SimulatedWorker(number, self._memory, self._settings, theirs)
        if worker.is_first:
            worker.is_first = False
            worker.process.begin(is_first=True)
        else:
            self._succession.on_fork(number)

    def send(self, number: int, command: WorkerCommand, fd: int | None = None) -> None:
        """As `Supervisor.send`."""
        worker = self.workers[number]
        if worker.link is not None and worker.process is not None:
            worker.link.send(command, fd)
            if isinstance(command, TakeOver):
                worker.process.begin(is_first=False)

    def is_succeeding(self) -> bool:
        """Whether a worker has died and no successor has taken over yet."""
        return any(worker.is_succeeding for worker in self.workers)

    def receive_events(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.link is not None and worker.process is not None:
                for event in worker.link.unread_events():
                    self._on_event(number, event)
                if worker.process.fiber.is_dead:
                    self._on_exit(number)

    def _on_event(self, number: int, event: WorkerEvent) -> None:
        self.workers[number].note(event)
        if isinstance(event, TookOver):
            self._succession.on_taken_over(number, event.clients)
        elif isinstance(event, ClientLeft):
            if self.registry.get(event.client) is not None:
                self._forget(event.client, event.reason)
        elif isinstance(event, MoveEvent):
            self._mover.on_event(number, event)

    def _on_exit(self, number: int) -> None:
        worker = self.workers[number]
        assert worker.link is not None
        worker.link.close()
        worker.link = worker.process = None
        worker.note_exit()
        self._start_task(partial(self._replace, number))

    async def _replace(self, number: int) -> None:
        is_late = self._chance.random() < 0.1
        was_waiting = self._log_waits_for(number)
        await self._reaper.reap(number)
        if was_waiting and not self._log_waits_for(number):
            self.kept_nothing += 1
            self._check_overwritten(number)
        if is_late:
            await self._reaper.release_log(number)
            self.kept_nothing += 1
        self._mover.on_worker_death(number)
        self._succession.on_death(number)
        left_out = await self._mover.wait_for_decisions(number)
        self._succession.leave_out(number, left_out)
        await trio.sleep(self._chance.choice((0, 0.001, 0.03)))
        self.fork(number)

    def _log_waits_for(self, number: int) -> bool:
        return bool(self._committed()[ALIVE] >> number & 1)

    def _check_overwritten(self, number: int) -> None:
        """The log was kept for a dead worker, unless another one may have overwritten what that had
        copied and not walked, with the largest append that may have been under way."""
        walked, _ = InFlight(self._memory, number).walked()
        size = self._memory.log_bytes
        written_max = self._committed()[LOG_HEAD] + size // 4
        assert written_max - walked > size, f"the log was not kept for worker {number}"

    def _committed(self) -> memoryview:
        lock = self._memory.lock
        assert isinstance(lock, SimulatedLock)
        return lock.committed()

    def _start_task(self, task: Callable[[], Any]) -> None:
        self.tasks += 1

        async def run() -> None:
            await task()
            self.tasks -= 1

        self._nursery.start_soon(run)

    # -- clients -------------------------------------------------------------------------------
    def admit(self, number: int, sock: socket.socket, own: Credentials) -> Client:
        """Have a worker serve a new client; takes the bus's end of its connection."""
        account = self.book.of(user_of(own.uid), self._settings.limits.user, 0)
        assert account is not None
        client = self.registry.add(number, sock, own, account)
        self.send(number, adoption(client, cast("Any", self)), sock.fileno())
        return client

    def move(self, client: Client, to: int) -> None:
        """Have another worker serve a client, if it can."""

        async def move() -> None:
            self._log.event(f"move-begin {client.number} {to}")
            outcome = await self._mover.move(client, to)
            self._log.event(f"move-end {client.number}")
            self.moved += not outcome.why_not

        self._start_task(move)

    def rules_for(self, _sock: socket.socket, _own: Credentials) -> int:
        """As `ConnectionPolicy.rules_for`: no rules concern anybody."""
        return 0

    def copy_socket(self, client: Client) -> socket.socket:
        """As `ClientDeparture.copy_socket`."""
        return dup_socket(client.sock)

    def close_copy(self, _client: Client, copy: socket.socket) -> None:
        copy.close()

    def disconnect(self, client: Client, reason: str, notice: bytes) -> None:
        """As `ClientDeparture.disconnect`."""
        client.sock.shutdown(socket.SHUT_RDWR)
        self._forget(client.number, reason)

    def _forget(self, number: int, reason: str) -> None:
        self.gone[number] = reason
        self.registry.remove(number).sock.close()

    # -- shared memory -------------------------------------------------------------------------
    def want_compaction(self) -> None:
        """Have the table compacted, as a worker does that finds it too long."""
        if self._memory.lock.try_acquire():
            with self._memory.lock as words:
                words[COMPACTION_WANTED] = 1
            self._memory.wake_front()

    def check_memory(self) -> None:
        """Raise AssertionError where the shared memory is not as it has to be between critical
        sections."""
        if self._memory.lock.try_acquire():
            with self._memory.lock as words:
                self.log.check_invariants(words)
