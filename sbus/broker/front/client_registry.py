"""The front's list of clients: who is connected, since when, and on which worker."""

import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

import msgspec

from sbus.broker.events.emitter import describe_client
from sbus.broker.ipc.bus_record import ConnectionRecord
from sbus.protocol.event import Client as DescribedClient
from sbus.shared.accounts import Account
from sbus.shared.client_slots import ClientSlots, Connection
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import peer_program
from sbus.unix.socket_cookie import socket_cookie


class Client(msgspec.Struct, eq=False):
    """A client, from its admission until it has left. `sock` is the front's copy."""

    number: int
    worker: int
    account: Account
    sock: socket.socket
    credentials: Credentials
    connected_at: float
    """Seconds since 1970."""
    slot: int
    """In the shared memory; no other client has it at the same time."""
    cookie: int = 0
    """Of its socket."""
    deaths: int = 0
    """Of workers that served this client, one soon after the other."""
    is_stored: bool = False
    """In the descriptor store, for the next bus."""

    @property
    def user(self) -> int:
        """The user id that its account has: of a subordinate id, its owner's."""
        return self.account.uid

    @property
    def program(self) -> bytes:
        """The name of the process that connected; empty when that has ended."""
        return peer_program(self.sock, self.credentials.pid)

    def describe(self) -> DescribedClient:
        """What events say of it."""
        return describe_client(self.number, self.credentials, self.sock)


class ClientRegistry:
    """All clients of a bus, in the order of their numbers, which only grow."""

    def __init__(self, workers: int, slots: ClientSlots) -> None:
        self._slots = slots
        self.by_worker = [Counter[int]() for _ in range(workers)]
        """How many clients each worker has of each user, by user id; without zeros."""
        self.stored = 0
        """How many clients are in the descriptor store."""
        self.stored_by_user = Counter[int]()
        """The same of each user, by user id; without zeros."""
        self.admitted = 0
        """How many clients there have been."""
        self._clients: dict[int, Client] = {}
        self._slots_used = 0
        self._free_slots: list[int] = []

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    def add(
        self, worker: int, sock: socket.socket, credentials: Credentials, account: Account
    ) -> Client:
        """Give a new client its number."""
        self.admitted += 1
        slot = self._take_slot()
        return self._add(
            Client(self.admitted, worker, account, sock, credentials, time.time(), slot)
        )

    def restore(
        self, record: ConnectionRecord, worker: int, sock: socket.socket, account: Account
    ) -> Client:
        """Add a client that has its number from another bus."""
        own, since, slot = record.credentials, record.connected_at, self._take_slot()
        return self._add(Client(record.number, worker, account, sock, own, since, slot))

    def continue_from(self, admitted: int) -> None:
        """Another bus has had so many clients, and those that it still has were added. The last
        number stands in a slot, from which a bus that resumes this one goes on."""
        self.admitted = admitted
        if admitted > max(self._clients, default=0):
            slot = self._take_slot()
            self._slots[slot].connect(admitted, 0, 0.0)
            self._free_slots.append(slot)

    def resume(self, client: Client) -> None:
        """Add a client that has its number and its slot from a bus whose processes have died, and
        is in the descriptor store."""
        self.note_stored(self._add(client))

    def resume_slots(self, connections: Iterable[Connection]) -> None:
        """All such clients were added; these had slots, and maybe still have them."""
        used = {client.slot for client in self}
        for connection in connections:
            self.admitted = max(self.admitted, connection.number)
            self._slots_used += 1
            if connection.slot not in used:
                self._slots[connection.slot].disconnect()
                self._free_slots.append(connection.slot)

    def leave_all(self) -> None:
        """Another bus has all clients still. Their sockets are closed here, and nothing else."""
        for client in self._clients.values():
            client.sock.close()
        self._clients.clear()

    def put_in_order(self) -> None:
        """All clients of another bus have been added."""
        self._clients = dict(sorted(self._clients.items()))

    def _add(self, client: Client) -> Client:
        self._clients[client.number] = client
        client.cookie = socket_cookie(client.sock)
        self._slots[client.slot].connect(client.number, client.cookie, client.connected_at)
        self._count(client, 1)
        return client

    def move(self, client: Client, worker: int) -> None:
        """Another worker serves a client from now on."""
        self._count(client, -1)
        client.worker = worker
        self._count(client, 1)

    def remove(self, number: int) -> Client:
        """Take out a client that is there."""
        client = self._clients.pop(number)
        self._slots[client.slot].disconnect()
        self._free_slots.append(client.slot)
        self._count(client, -1)
        if client.is_stored:  # the service manager notices that its connection has ended
            self.stored -= 1
            _add_to(self.stored_by_user, client.user, -1)
        return client

    def note_stored(self, client: Client) -> None:
        client.is_stored = True
        self.stored += 1
        _add_to(self.stored_by_user, client.user, 1)

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._slots_used += 1
        return self._slots_used - 1

    def _count(self, client: Client, more: int) -> None:
        _add_to(self.by_worker[client.worker], client.user, more)

    def wants_notices(self, client: Client) -> bool:
        """Whether a client has asked its worker for notices."""
        slot = self._slots[client.slot]
        return slot.is_of(client.number) and slot.settings().wants_notices

    def is_closed(self, client: Client) -> bool:
        """Whether the worker of a client serves it no more."""
        slot = self._slots[client.slot]
        return slot.is_of(client.number) and slot.is_closed

    def get(self, number: int) -> Client | None:
        return self._clients.get(number)

    def newer_than(self, number: int) -> list[Client]:
        """The clients with greater numbers, in their order."""
        newest = takewhile(lambda it: it.number > number, reversed(self._clients.values()))
        return list(newest)[::-1]

    def of_worker(self, worker: int) -> list[Client]:
        return [client for client in self if client.worker == worker]

    def workers_of(self, uid: int) -> list[int]:
        """The workers that serve clients of this user."""
        return [worker for worker, users in enumerate(self.by_worker) if uid in users]

    def connected_users(self) -> int:
        """Users with at least one client."""
        return len({client.user for client in self})

    def page(self, uid: int | None, after: int, size: int) -> list[Client]:
        """Up to `size` clients, of one user or of all, in the order of their numbers. A client of a
        subordinate id is one of its owner's, too."""
        matching = (
            client
            for client in self
            if client.number > after
            and (uid is None or uid in (client.user, client.credentials.uid))
        )
        return list(islice(matching, size))


def _add_to(counts: Counter[int], uid: int, more: int) -> None:
    counts[uid] += more
    if not counts[uid]:
        del counts[uid]
