"""Connections that outlive the program, because a service manager keeps a copy of their sockets.

What arrives can be left in the socket until the program has put it elsewhere. For what is sent, the
bus counts the messages of each client, and gives receipts.
"""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack

from sbus.client.async_link import AsyncLink
from sbus.client.connection import Connection
from sbus.client.link import Link
from sbus.client.message_queue import Lost
from sbus.client.options import LinkOptions
from sbus.client.packet_reader import begin_peeking, take_peeked
from sbus.client.receipts import OpenReceipt
from sbus.protocol.packets import Message
from sbus.unix.socket_cookie import socket_cookie


class KeptConnection(Connection[Message | Lost]):
    """A connection, and what it takes to go on with it."""

    @property
    def sock(self) -> socket.socket:
        return self._link.sock

    @property
    def cookie(self) -> int:
        return socket_cookie(self.sock)

    def leave_packets(self, *, take_first: bool) -> None:
        """From now on, leave packets in the socket until they are taken. `take_first`: also take
        those that an earlier process has read and left there."""
        if take_first:
            take_peeked(self.sock)
        begin_peeking(self.sock)
        self._link.peek()

    def take_packets(self) -> None:
        """Take everything that was read from the socket."""
        take_peeked(self.sock)

    async def ask_receipt(self, key: bytes | str, payload: bytes | str) -> OpenReceipt:
        """Publish a message; `wait_receipts` follows."""
        return await self._io.ask_receipt(self._link.encoder.publish(key, payload))

    async def wait_receipts(self, opened: Sequence[OpenReceipt]) -> None:
        """Return when each has a result. Raises the end of the connection."""
        try:
            await self._io.read_until(lambda: all(it.result is not None for it in opened))
        finally:
            for receipt in opened:
                self._link.inbox.receipts.close(receipt)

    async def count_published(self, name: bytes) -> int | None:
        """How many messages the bus has published for this client, which has this name; None if the
        bus does not tell. Includes a `sync`."""
        me = await self.me()
        mine = {it.client for it in await self.members(b"%d/%b" % (me.user.uid, name))}
        for client in me.clients:
            if client.client in mine and client.activity is not None:
                return client.activity.messages_in
        return None


@asynccontextmanager
async def kept_connection(
    address: str, sock: socket.socket | None, **options: Unpack[LinkOptions]
) -> AsyncIterator[KeptConnection]:
    """A connection with this socket, which is taken, or a new one; otherwise as `connect`."""
    link = Link[Any](address, "report", options)
    bus = KeptConnection(AsyncLink(link))
    try:
        if sock is None:
            await bus._io.open()
        else:
            link.adopt(sock)
        yield bus
    finally:
        bus.close()
