"""Culprits: clients that workers die of, which are disconnected with a reason.

A worker notes in the shared memory which client it serves, or inherits. A client that was noted at
three deaths is disconnected, if the second and the third were either early or next in a row: each
of them within a minute of the worker's fork, and no other client noted there between. Early is a
death within a second, or before the worker has taken over, and others may be noted between.

When as many successors of one worker die without such a note before they have taken over, all
clients of that worker are disconnected: nobody knows which of them is the reason, and the next
successor begins without clients.
"""

from collections import Counter

import trio

from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.departure import ClientDeparture
from sbus.broker.front.supervisor import EARLY_DEATH_SECONDS, Supervisor
from sbus.protocol.controls import end_notice, error_notice
from sbus.protocol.events import ClientExpelled, SuccessionGivenUp
from sbus.shared.shared_memory import SharedMemory

_DEATHS_MAX = 3
_ROW_SECONDS_MAX = 60.0
"""From the fork of a worker to a death that goes on with a row: workers that are killed now and
then, for another reason, may have one busy client."""
_CODE = "kills-workers"
_TEXT = "three workers died while they served this client"
_DISCONNECTED_PER_CALLBACK = 32


class Culprits:
    """Of one bus."""

    def __init__(
        self,
        memory: SharedMemory,
        supervisor: Supervisor,
        registry: ClientRegistry,
        departure: ClientDeparture,
        events: EventEmitter,
    ) -> None:
        self._memory = memory
        self._supervisor = supervisor
        self._registry = registry
        self._departure = departure
        self._events = events
        self._taking_over: set[int] = set()
        self._last_served: Counter[int] = Counter()
        """By worker: the client that was noted at its last death, or 0."""
        self._failures: Counter[int] = Counter()
        """Of workers: successors in a row that died before they had taken over, for no client."""

    def on_succession(self, worker: int) -> None:
        """A successor of this worker was forked."""
        self._taking_over.add(worker)

    def on_taken_over(self, worker: int) -> None:
        """A successor serves its clients."""
        self._taking_over.discard(worker)
        del self._failures[worker]

    def on_death(self, worker: int) -> None:
        """A worker has died: was it for a client?"""
        served = self._memory.served_clients[worker]
        self._memory.served_clients[worker] = 0
        last_served, self._last_served[worker] = self._last_served[worker], served
        age_seconds = self._supervisor.workers[worker].age_seconds
        is_early = worker in self._taking_over or age_seconds < EARLY_DEATH_SECONDS
        is_next = served == last_served and age_seconds < _ROW_SECONDS_MAX
        client = self._registry.get(served)
        if client is not None and client.worker == worker:
            client.deaths = client.deaths + 1 if is_early or is_next else 1
        elif worker in self._taking_over:
            self._failures[worker] += 1

    async def disconnect(self, worker: int, clients: list[Client]) -> None:
        """Disconnect those of a dead worker's clients that are to blame for it, or all of them."""
        for client in clients:
            if client.deaths >= _DEATHS_MAX:
                self._events.emit(ClientExpelled(who=client.describe(), code=_CODE, why=_TEXT))
                self._departure.disconnect(client, _CODE, error_notice(_CODE, _TEXT))
        if self._failures[worker] >= _DEATHS_MAX:
            del self._failures[worker]
            self._events.emit(SuccessionGivenUp(worker=worker, clients=len(clients)))
            await self._disconnect_all(clients)

    async def _disconnect_all(self, clients: list[Client]) -> None:
        for number, client in enumerate(clients, 1):
            if self._registry.get(client.number) is client:
                self._departure.disconnect(client, "worker-died", end_notice("worker-died"))
            if not number % _DISCONNECTED_PER_CALLBACK:
                await trio.lowlevel.checkpoint()
