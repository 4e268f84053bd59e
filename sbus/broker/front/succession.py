"""Succession: the successor of a worker that died gets its clients, and they notice little of it.

The front has every client's socket. It sends the successor all clients of the predecessor, piece by
piece, and then has it take over; the rest is in the shared memory (`worker.inheritance`). Nothing
is sent before the kernel has reported the predecessor's end.

A client may be the reason for the death; `culprits` finds out, and disconnects it.
"""

import time

import trio

from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.admission import adoption
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.connection_policy import ConnectionPolicy
from sbus.broker.front.culprits import Culprits
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.ipc.worker_protocol import InheritClient, TakeOver
from sbus.protocol.events import WorkerTookOver

_CLIENTS_PER_CALLBACK = 50


class Succession:
    """Of the workers of one bus."""

    def __init__(
        self,
        nursery: trio.Nursery,
        policy: ConnectionPolicy,
        supervisor: Supervisor,
        registry: ClientRegistry,
        culprits: Culprits,
        events: EventEmitter,
    ) -> None:
        self._nursery = nursery
        self._policy = policy
        self._supervisor = supervisor
        self._registry = registry
        self._culprits = culprits
        self._events = events
        self._died_at: dict[int, float] = {}
        """The workers that have died, and when; by `time.monotonic`."""
        self._left_out: dict[int, list[Client]] = {}

    def on_death(self, worker: int) -> None:
        """A worker has died; its successor is not forked yet."""
        self._died_at[worker] = time.monotonic()
        self._culprits.on_death(worker)

    def expect_successors(self) -> None:
        """All workers of an earlier bus have died; this bus goes on with their clients."""
        for worker in self._supervisor.workers:
            worker.is_succeeding = True
            self._died_at[worker.number] = time.monotonic()

    def leave_out(self, worker: int, clients: list[Client]) -> None:
        """Do not give these clients to the successor of a worker: another one may have them."""
        self._left_out[worker] = clients

    def on_fork(self, worker: int) -> None:
        """A worker was forked; if it is a successor, it waits for clients."""
        if worker in self._died_at:
            left_out = self._left_out.pop(worker, [])
            clients = [it for it in self._registry.of_worker(worker) if it not in left_out]
            link = self._supervisor.workers[worker].link
            assert link is not None
            self._culprits.on_succession(worker)
            self._nursery.start_soon(self._hand_on, worker, link, clients)

    async def _hand_on(self, worker: int, link: WorkerLink, clients: list[Client]) -> None:
        """Send clients to the successor that has this link."""
        await self._culprits.disconnect(worker, clients)
        for number, client in enumerate(clients, 1):
            if self._supervisor.workers[worker].link is not link:
                return  # it has died as well
            if self._registry.get(client.number) is client and client.worker == worker:
                command = InheritClient(adoption(client, self._policy))
                self._supervisor.send(worker, command, client.sock.fileno())
            if not number % _CLIENTS_PER_CALLBACK:
                await link.wait_until_sent()
        if self._supervisor.workers[worker].link is link:
            self._supervisor.send(worker, TakeOver())

    def on_taken_over(self, worker: int, clients: int) -> None:
        """A successor serves so many clients of its predecessor."""
        self._culprits.on_taken_over(worker)
        milliseconds = round((time.monotonic() - self._died_at[worker]) * 1_000)
        self._events.emit(WorkerTookOver(worker=worker, clients=clients, milliseconds=milliseconds))
