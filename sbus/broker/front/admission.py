"""Client admission: gives each new client to a worker, in the order of the connection queue.

The front keeps a copy of every client's socket, which it never reads or writes: the successor of a
worker that died gets its clients' sockets from there.
"""

import trio

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.connection_policy import ConnectionPolicy
from sbus.broker.front.connection_queue import AcceptedClient
from sbus.broker.front.placement import Placement
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import AdoptClient
from sbus.protocol.events import ClientConnected


def adoption(client: Client, policy: ConnectionPolicy) -> AdoptClient:
    """The command to serve a client, with the access rules of now."""
    rules = encode_rule_set(policy.rules_for(client.sock, client.credentials))
    place = client.account.place
    return AdoptClient(client.number, client.credentials, place, rules, client.slot)


class ClientAdmission:
    """Admits clients."""

    def __init__(
        self,
        acceptor: Acceptor,
        policy: ConnectionPolicy,
        supervisor: Supervisor,
        registry: ClientRegistry,
        placement: Placement,
        events: EventEmitter,
    ) -> None:
        self._acceptor = acceptor
        self._policy = policy
        self._supervisor = supervisor
        self._registry = registry
        self._placement = placement
        self._events = events

    async def run(self, scope: trio.CancelScope) -> None:
        """Admit clients until `scope` is cancelled, because the bus drains or stops."""
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._acceptor.run)
                while True:
                    await self._acceptor.wait_for_client()
                    available = await self._supervisor.wait_for_available_workers()
                    accepted = self._acceptor.next_client()
                    if accepted is not None:
                        self._admit(accepted, available)
                    await trio.lowlevel.checkpoint()

    def _admit(self, accepted: AcceptedClient, workers: list[int]) -> None:
        worker = self._placement.choose(accepted.account.uid, workers)
        client = self._registry.add(worker, accepted.sock, accepted.credentials, accepted.account)
        self._hand_over(client)

    def _hand_over(self, client: Client) -> None:
        # Its rules are looked up now: they may have changed while it waited for its turn.
        command = adoption(client, self._policy)
        if self._events.is_watched:
            self._events.emit(ClientConnected(who=client.describe(), worker=client.worker))
        self._supervisor.send(client.worker, command, client.sock.fileno())
