"""Client departure: forgets a client when it has left.

A client is known to the front from its admission until its worker, or that worker's death, reports
that it has left.
"""

import socket

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.closer import Closer
from sbus.broker.front.shutdown import Shutdown
from sbus.protocol.controls import end_notice
from sbus.protocol.events import ClientDisconnected
from sbus.unix.closing import discard_unread, end_connection, send_last
from sbus.unix.fd_passing import dup_socket
from sbus.unix.send_buffer import large_buffer_bytes

_DISCONNECTED_PER_CALLBACK = 32
"""Each takes some 0.02 ms, and up to 2 ms with unread packets."""


class ClientDeparture:
    """Disconnects clients and forgets them."""

    def __init__(
        self,
        acceptor: Acceptor,
        registry: ClientRegistry,
        closer: Closer,
        shutdown: Shutdown,
        settings: BusSettings,
        events: EventEmitter,
    ) -> None:
        self._acceptor = acceptor
        self._registry = registry
        self._closer = closer
        self._shutdown = shutdown
        self._events = events
        self.apply_settings(settings)

    def apply_settings(self, settings: BusSettings) -> None:
        self._discarded_packets_max = settings.limits.drain_packets_max
        self._buffer_bytes = large_buffer_bytes(settings.limits)

    def disconnect(self, client: Client, reason: str, notice: bytes = b"") -> None:
        """End the connection of a client whose worker did not, in good order, with this notice as
        the last packet if the client wants notices."""
        discard_unread(client.sock, self._discarded_packets_max)
        if notice and self._registry.wants_notices(client):
            # The small buffer of a client that does not read is full.
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer_bytes)
            send_last(client.sock, notice)
        self.forget(client.number, reason)

    async def disconnect_all(self, code: str, spares_stored: bool = False) -> None:
        """End the connections of all clients, or of all that are not stored for the next bus,
        because the bus ends and no worker serves them any more; `code` says why."""
        notice = end_notice(code)
        clients = [client for client in self._registry if not (spares_stored and client.is_stored)]
        for number, client in enumerate(clients, 1):
            self.disconnect(client, code, notice)
            if not number % _DISCONNECTED_PER_CALLBACK:
                await trio.lowlevel.checkpoint()

    def forget(self, number: int, reason: str) -> None:
        """Forget a client that has left, and close this copy of its socket."""
        client = self._registry.remove(number)
        if self._events.is_watched:
            who = client.describe()
            self._events.emit(ClientDisconnected(who=who, worker=client.worker, reason=reason))
        end_connection(client.sock)
        self._closer.close(client.sock, client.user)
        self._acceptor.client_left(client.account)
        self._shutdown.check_empty()

    def take_in(self, client: Client) -> None:
        """A client that another bus had accepted is to depart from here."""
        self._closer.keep(client.sock)
        self._acceptor.client_came(client.account)

    def copy_socket(self, client: Client) -> socket.socket:
        """A copy of a client's socket, which is open when the client leaves meanwhile. Raises
        OSError."""
        copy = dup_socket(client.sock)
        self._closer.keep(copy)
        return copy

    def close_copy(self, client: Client, copy: socket.socket) -> None:
        self._closer.close(copy, client.user)
