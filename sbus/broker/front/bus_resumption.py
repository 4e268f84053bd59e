"""Resuming a bus: all processes of a bus have died, and this one goes on with its clients.

The service manager has kept its shared memory and the sockets of its clients. Every worker of this
bus is the successor of the worker with the same number, and serves its clients as after any death
of a worker (`succession`). What only the front had known stands in the clients' slots, or the
kernel says it: who the client is. A connection that was not kept has ended; its client is forgotten
by the successor of its worker.

    a client that was being moved is served by the worker that has arrived last in its slot, or
    that is handed the client over in what is left of the log
"""

import socket
from collections.abc import Mapping

import trio

from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.departure import ClientDeparture
from sbus.broker.front.reaper import Reaper
from sbus.broker.front.succession import Succession
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.shared.client_slots import ClientSlots, Connection
from sbus.shared.in_flight import InFlight
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import SharedMemory
from sbus.unix.closing import end_connection
from sbus.unix.credentials import peer_credentials
from sbus.unix.socket_cookie import socket_cookie

_CLIENTS_PER_CALLBACK = 50


class BusResumption:
    """Of one bus."""

    def __init__(
        self,
        memory: SharedMemory,
        registry: ClientRegistry,
        user_limits: EffectiveUserLimits,
        departure: ClientDeparture,
        reaper: Reaper,
        succession: Succession,
    ) -> None:
        self._memory = memory
        self._registry = registry
        self._user_limits = user_limits
        self._departure = departure
        self._reaper = reaper
        self._succession = succession

    async def run(self, sockets: Mapping[int, socket.socket]) -> int:
        """Make these connections clients again, by their numbers, to be given to the workers that
        are forked next. Returns how many other clients there were."""
        for worker in range(self._memory.workers):
            await self._reaper.reap(worker)
        handed_over = self._handed_over()
        slots = ClientSlots(self._memory.client_slots)
        connections = {it.number: it for it in slots.connections()}
        for count, (number, sock) in enumerate(sockets.items(), 1):
            connection = connections.get(number)
            if connection is None or connection.cookie != socket_cookie(sock):
                _end(sock)
            else:
                worker = handed_over.get(number, slots[connection.slot].worker)
                self._restore(connection, worker, sock)
            if not count % _CLIENTS_PER_CALLBACK:
                await trio.lowlevel.checkpoint()
        lost = sum(it.cookie != 0 for it in connections.values()) - len(self._registry)
        self._registry.resume_slots(connections.values())
        self._succession.expect_successors()
        self._memory.wake_front()  # it may have been woken just before it ended
        return lost

    def _handed_over(self) -> dict[int, int]:
        """The clients that workers are handed over in what they have not walked."""
        workers: dict[int, int] = {}
        for worker in range(self._memory.workers):
            log = OrderedLog(self._memory, worker)
            walked, _ = InFlight(self._memory, worker).walked()
            with self._memory.lock as words:
                end = log.destined_end(words) if log.resume(words, walked) else 0
            _, arrivals = log.look_ahead(end)
            workers.update(dict.fromkeys(arrivals, worker))
        return workers

    def _restore(self, connection: Connection, worker: int, sock: socket.socket) -> None:
        credentials = peer_credentials(sock)
        account = self._user_limits.open_account(credentials.uid)
        if account is None:  # a subordinate id that has another owner now
            _end(sock)
            return
        since, slot = connection.connected_at, connection.slot
        client = Client(connection.number, worker, account, sock, credentials, since, slot)
        self._registry.resume(client)
        self._departure.take_in(client)


def _end(sock: socket.socket) -> None:
    end_connection(sock)
    sock.close()
