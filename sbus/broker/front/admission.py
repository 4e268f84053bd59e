"""Client admission: gives each new client to the worker with the fewest, and forgets it when it
has left.

The front keeps a copy of every client's socket, which it never reads or writes: with it the front
ends the connections of a worker that died in good order. A client is known here from its admission
until its worker, or that worker's death, reports that it has left.
"""

import trio

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.shutdown import Shutdown
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import AdoptClient
from sbus.protocol.events import ClientConnected, ClientDisconnected
from sbus.unix.closing import discard_unread, shut_down


class ClientAdmission:
    """Admits clients, disconnects them and forgets them."""

    def __init__(
        self,
        acceptor: Acceptor,
        supervisor: Supervisor,
        registry: ClientRegistry,
        shutdown: Shutdown,
        settings: BusSettings,
        events: EventEmitter,
    ) -> None:
        self._acceptor = acceptor
        self._supervisor = supervisor
        self._registry = registry
        self._shutdown = shutdown
        self._events = events
        self.apply_settings(settings)

    def apply_settings(self, settings: BusSettings) -> None:
        self._discarded_packets_max = settings.limits.drain_packets_max

    async def run(self) -> None:
        """Admit clients until the bus drains or stops."""
        with self._shutdown.admission_scope:
            while True:
                accepted = await self._acceptor.next_client()
                worker = await self._supervisor.wait_for_available_worker(self._registry.load)
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

    def disconnect(self, client: Client, reason: str) -> None:
        """End the connection of a client whose worker did not, in good order."""
        discard_unread(client.sock, self._discarded_packets_max)
        self.forget(client.number, reason)

    def forget(self, number: int, reason: str) -> None:
        """Forget a client that has left, and close this copy of its socket."""
        client = self._registry.remove(number)
        if self._events.is_watched:
            who = client.describe()
            self._events.emit(ClientDisconnected(who=who, worker=client.worker, reason=reason))
        shut_down(client.sock)
        self._acceptor.client_left(client.account)
        self._shutdown.check_empty()
