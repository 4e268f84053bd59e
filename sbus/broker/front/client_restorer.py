"""The clients of another bus become clients of this one, under the same numbers."""

import socket
from collections.abc import Iterable, MutableMapping

from sbus.broker.front.admission import adoption
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.connection_policy import ConnectionPolicy
from sbus.broker.front.departure import ClientDeparture
from sbus.broker.front.placement import Placement
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.broker.ipc.bus_record import BusRecord, ConnectionRecord, UserRecord
from sbus.broker.ipc.records_file import Place, RecordsFile
from sbus.broker.ipc.upgrade_link import UpgradeFailed
from sbus.broker.ipc.worker_protocol import PrepareRecorded

_CLIENTS_PER_CALLBACK = 50


class ClientRestorer:
    """Of one bus."""

    def __init__(
        self,
        supervisor: Supervisor,
        registry: ClientRegistry,
        policy: ConnectionPolicy,
        user_limits: EffectiveUserLimits,
        placement: Placement,
        departure: ClientDeparture,
    ) -> None:
        self._supervisor = supervisor
        self._registry = registry
        self._policy = policy
        self._user_limits = user_limits
        self._placement = placement
        self._departure = departure
        self._places: dict[int, tuple[int, Place]] = {}
        """The file of each client's first record, which has its patterns, and where it is there."""

    def add_records(self, file: int, fd: int) -> None:
        """Use the records in this file, which has this number. Raises UnknownVersion."""
        for client, place in RecordsFile(fd).places():
            self._places.setdefault(client, (file, place))

    def end(self) -> None:
        """All clients are here."""
        self._places.clear()

    def open_accounts(self, users: Iterable[UserRecord]) -> None:
        """Open accounts in the same order, because the oldest ones stay open."""
        for user in users:
            if user.has_account:
                self._user_limits.open_account(user.account.uid)

    async def prepare(
        self, record: BusRecord, sockets: MutableMapping[int, socket.socket], *, is_final: bool
    ) -> None:
        """Give workers those clients that they do not have. Sockets that are used are taken.
        A client may miss its socket or its record, unless this `is_final`. Raises UpgradeFailed."""
        keeps_workers = len(record.counters) == len(self._supervisor.workers)
        for number, connection in enumerate(record.clients, 1):
            if self._registry.get(connection.number) is None:
                has_all = connection.cookie in sockets and connection.number in self._places
                if has_all:
                    sock = sockets.pop(connection.cookie)
                    self._prepare_client(connection, sock, keeps_workers=keeps_workers)
                elif is_final:
                    raise UpgradeFailed(f"client {connection.number} did not come over")
            if not number % _CLIENTS_PER_CALLBACK:
                for worker in self._supervisor.workers:
                    if worker.link is not None:
                        await worker.link.wait_until_sent()

    def _prepare_client(
        self, connection: ConnectionRecord, sock: socket.socket, *, keeps_workers: bool
    ) -> None:
        account = self._user_limits.open_account(connection.credentials.uid)
        if account is None:
            raise UpgradeFailed("there are more users than users_max")
        workers = range(len(self._supervisor.workers))
        if keeps_workers or (self._placement.is_by_load and connection.worker in workers):
            worker = connection.worker
        else:
            worker = self._placement.choose(account.uid, workers)
        client = self._registry.restore(connection, worker, sock, account)
        self._departure.take_in(client)
        self._hand_on(client)

    def _hand_on(self, client: Client) -> None:
        file, place = self._places[client.number]
        command = PrepareRecorded(adoption(client, self._policy), file, place.at, place.size)
        self._supervisor.send(client.worker, command, client.sock.fileno())

    def forget_missing(self, record: BusRecord) -> None:
        """Forget the clients that have left while they were prepared."""
        self._registry.put_in_order()
        left = {connection.number for connection in record.clients}
        for client in list(self._registry):
            if client.number not in left:
                self._departure.forget(client.number, "")
