"""What the front has to tell of the bus when another one takes its place, and how that goes on."""

import socket

from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.rejector import Rejector
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.broker.ipc.bus_record import BusRecord, ConnectionRecord
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.worker_statistics import counters_of, named_counters
from sbus.unix.socket_cookie import socket_cookie


class BusRecorder:
    """Of one bus."""

    def __init__(
        self,
        memory: SharedMemory,
        registry: ClientRegistry,
        acceptor: Acceptor,
        rejector: Rejector,
        user_limits: EffectiveUserLimits,
    ) -> None:
        self._memory = memory
        self._registry = registry
        self._acceptor = acceptor
        self._rejector = rejector
        self._user_limits = user_limits

    def clients(self) -> list[Client]:
        return list(self._registry)

    def waiting(self) -> list[socket.socket]:
        """Accepted connections that wait for admission."""
        return self._acceptor.waiting()

    def record(self) -> BusRecord:
        """Everything, as it is now."""
        workers = range(self._memory.workers)
        return BusRecord(
            clients=list(map(_record, self._registry)),
            waiting_cookies=list(map(socket_cookie, self.waiting())),
            admitted=self._registry.admitted,
            refused=dict(self._rejector.refused),
            users=self._user_limits.records(),
            counters=[named_counters(counters_of(self._memory.statistics, w)) for w in workers],
        )

    def restore(self, record: BusRecord) -> None:
        """Go on with what another bus had, but for its clients and counters."""
        self._registry.continue_from(record.admitted)
        self._rejector.refused.update(record.refused)
        for user in record.users:
            self._user_limits.restore(user)


def _record(client: Client) -> ConnectionRecord:
    return ConnectionRecord(
        number=client.number,
        cookie=client.cookie,
        credentials=client.credentials,
        connected_at=client.connected_at,
        worker=client.worker,
    )
