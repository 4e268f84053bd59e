"""Client admission: gives each new client to a worker.

The front keeps a copy of every client's socket, which it never reads or writes: with it the front
ends the connections of a worker that died in good order.
"""

import trio

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.placement import Placement
from sbus.broker.front.shutdown import Shutdown
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import AdoptClient
from sbus.protocol.events import ClientConnected


class ClientAdmission:
    """Admits clients."""

    def __init__(
        self,
        acceptor: Acceptor,
        supervisor: Supervisor,
        registry: ClientRegistry,
        placement: Placement,
        shutdown: Shutdown,
        events: EventEmitter,
    ) -> None:
        self._acceptor = acceptor
        self._supervisor = supervisor
        self._registry = registry
        self._placement = placement
        self._shutdown = shutdown
        self._events = events

    async def run(self) -> None:
        """Admit clients until the bus drains or stops."""
        with self._shutdown.admission_scope:
            while True:
                accepted = await self._acceptor.next_client()
                available = await self._supervisor.wait_for_available_workers()
                worker = self._placement.choose(accepted.credentials.uid, available)
                client = self._registry.add(
                    worker, accepted.sock, accepted.credentials, accepted.account
                )
                self._hand_over(client)
                await trio.lowlevel.checkpoint()

    def _hand_over(self, client: Client) -> None:
        # Its rules are looked up now: they may have changed while it waited for a worker.
        rules = encode_rule_set(self._acceptor.rules_for(client.sock, client.credentials))
        command = AdoptClient(client.number, client.credentials, client.account.place, rules)
        if self._events.is_watched:
            self._events.emit(ClientConnected(who=client.describe(), worker=client.worker))
        self._supervisor.send(client.worker, command, client.sock.fileno())
