"""The client store: keeps what the next bus needs in the service manager's descriptor store.

That is the shared memory and the sockets of settled clients. When all processes of this bus have
died, the manager starts it again and passes them, and the next bus goes on with its clients (see
`bus_resumption`). A storm of connections is not one of the manager's, because a client is stored
only after a while, and few at a time. A user has at most as many clients there as it leaves places
to others:

    user's stored clients + 1  <=  places - (all stored clients + 1)

The manager closes its copy of a socket as soon as the connection has ended, at either end: all ends
of a connection here shut the socket down. It would drop the last reference to descriptors that are
attached to unread packets, so connections whose packets may carry any are not stored. One that a
client made before the bus started carries none once everything of before has been read.
"""

import os
import socket
import time

import msgspec
import trio

from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.shared.shared_memory import SharedMemory
from sbus.unix.descriptor_store import NAMES_BYTES_MAX, client_name, memory_name
from sbus.unix.errno_sets import OUT_OF_RESOURCES
from sbus.unix.fd_passing import may_carry_descriptors, refuse_unless_unread
from sbus.unix.notify import Notifier

_SETTLED_SECONDS = 1.0
"""A client that leaves so soon is not stored."""
_PACE_SECONDS = 0.003
"""Between two clients. Each takes some 50 us of the service manager."""
_CLIENTS_PER_CALLBACK = 100
_STABLE_SECONDS = 2.0
"""A bus that has served for so long does not fail because of what it goes on with."""


class ResumedBus(msgspec.Struct, frozen=True):
    """What this bus goes on with, besides the memory."""

    stored_at_ns: int | None = None
    """When the memory was stored; None for a bus that begins anew."""
    sockets: dict[int, socket.socket] = {}
    """Of clients, by their numbers."""
    has_configured_shape: bool = True
    """Whether the configuration asks for a memory of this shape."""


class ClientStore:
    """Of one bus."""

    def __init__(
        self,
        memory: SharedMemory,
        registry: ClientRegistry,
        notifier: Notifier,
        resumed: ResumedBus,
        listener: socket.socket,
    ) -> None:
        self._memory = memory
        self._registry = registry
        self._notifier = notifier
        self._stored_at_ns = resumed.stored_at_ns
        self._listener = listener
        self._scope = trio.CancelScope()

    @property
    def keeps_clients(self) -> bool:
        """Whether the next bus gets the stored clients if this one ends now."""
        return self._memory.is_kept and self._registry.stored > 0

    def give_up(self) -> None:
        """Store nothing more. No bus may go on with this memory."""
        self._scope.cancel()
        self._memory.is_kept = False
        if self._stored_at_ns is not None:
            self._notifier.remove_stored(memory_name(self._stored_at_ns))

    # -- storing -------------------------------------------------------------------------------
    async def run(self) -> None:
        """Store what there is, until this is given up."""
        if self._notifier.stored_max and not may_carry_descriptors(self._listener):
            with self._scope:
                await self._store_clients()

    async def _store_clients(self) -> None:
        waiting = list(self._registry)  # of a bus whose place this one has taken
        newest = self._registry.admitted
        while True:
            waiting = await self._store(waiting)
            waiting += self._registry.newer_than(newest)
            newest = self._registry.admitted
            await trio.sleep(_SETTLED_SECONDS)

    async def _store(self, clients: list[Client]) -> list[Client]:
        """Store those clients that can be stored now; returns the others, except for those that
        have left."""
        left = []
        without_room: set[int] = set()
        for number, client in enumerate(clients, 1):
            if self._registry.get(client.number) is not client or client.is_stored:
                continue
            if client.user not in without_room and not self._has_room(client):
                without_room.add(client.user)
            if client.user not in without_room and self._try_to_store(client):
                self._registry.note_stored(client)
                await trio.sleep(_PACE_SECONDS)
            else:
                left.append(client)
            if not number % _CLIENTS_PER_CALLBACK:
                await trio.lowlevel.checkpoint()
        return left

    def _try_to_store(self, client: Client) -> bool:
        """Store a client if its packets carry no descriptors and the manager is not busy."""
        return (
            (not may_carry_descriptors(client.sock) or refuse_unless_unread(client.sock))
            and (self._stored_at_ns is not None or self._try_to_store_memory())
            and self._notifier.store(client_name(client.number), client.sock.fileno())
        )

    def _has_room(self, client: Client) -> bool:
        """Whether the store, and the string of all names, have room for one more like this, and the
        user leaves as much to others."""
        name_bytes = len(client_name(client.number)) + 1
        places = min(self._notifier.stored_max - 1, NAMES_BYTES_MAX // name_bytes)
        own, stored = self._registry.stored_by_user[client.user], self._registry.stored
        return own + 1 <= places - (stored + 1)

    def _try_to_store_memory(self) -> bool:
        now_ns = time.monotonic_ns()
        try:
            memfd = self._memory.reopen()
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES:
                raise
            return False
        is_stored = self._notifier.store(memory_name(now_ns), memfd)
        os.close(memfd)
        if is_stored:
            self._stored_at_ns = now_ns
            self._memory.is_kept = True
        return is_stored


async def note_stability(memory: SharedMemory) -> None:
    """This bus is not the one that fails with the memory, once it has served for a while."""
    await trio.sleep(_STABLE_SECONDS)
    memory.resume_attempts = 0
