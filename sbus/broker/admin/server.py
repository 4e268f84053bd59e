"""The admin socket: who may ask, and one request after the other.

Only administrators are answered, by their peer credentials. A request that is malformed is answered
with what is wrong. A connection that does not take its replies is closed.

A bug of this project in answering ends the connection that it happened on. The administrator and an
event say which: it must not end the front, and with it the bus.
"""

import socket
from contextlib import suppress
from functools import partial

import msgspec
import trio

from sbus.broker.admin.actions import describe_request, is_change
from sbus.broker.admin.request_codec import (
    AdminFault,
    Handlers,
    Takers,
    encode_reply,
    parse_head,
    parse_request,
)
from sbus.broker.events.emitter import EventEmitter, describe_bug
from sbus.broker.front.acceptor import accept_connection
from sbus.broker.front.administrators import Administrators
from sbus.broker.front.callback_timer import ADMINISTRATION
from sbus.broker.front.closer import Closer
from sbus.broker.front.turns import TimedTurns
from sbus.protocol import admin
from sbus.protocol.admin_events import AdministratorActed, AdminRequestFailed
from sbus.unix.credentials import peer_credentials
from sbus.unix.errno_sets import PEER_GONE
from sbus.unix.fd_passing import refuse_descriptors
from sbus.unix.open_files import administrators_max

_NOT_ALLOWED = encode_reply(
    0,
    AdminFault(
        "not-allowed", "only root, the bus's own user and its admin group may administer it"
    ),
)
_SEND_SECONDS_MAX = 10.0
_BACK_OFF_SECONDS = 0.1


class AdminServer:
    """Serves on `listener`, which it borrows."""

    def __init__(
        self,
        listener: socket.socket,
        administrators: Administrators,
        closer: Closer,
        handlers: Handlers,
        takers: Takers,
        events: EventEmitter,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._administrators = administrators
        self._closer = closer
        self._handlers = handlers
        self._takers = takers
        self._events = events
        self._turns = TimedTurns()
        self._connections = trio.CapacityLimiter(max(1, administrators_max()))

    async def run(self, scope: trio.CancelScope) -> None:
        """Serve administrators; those that connect until `scope` is cancelled."""
        refuse_descriptors(self._listener)
        async with trio.open_nursery() as tasks:
            with scope:
                while True:
                    sock = await accept_connection(self._listener, self._back_off)
                    await self._admit(sock, tasks)

    async def _admit(self, sock: socket.socket, tasks: trio.Nursery) -> None:
        self._closer.keep(sock)
        if self._is_admitted(sock):
            await self._connections.acquire_on_behalf_of(sock)
            tasks.start_soon(self._serve, sock, name=ADMINISTRATION)
        else:
            await self._turns.use(partial(self._refuse, sock))

    def _refuse(self, sock: socket.socket) -> None:
        """Refuse a connection at once: a flood of these takes no place and no task."""
        with suppress(OSError):
            sock.send(_NOT_ALLOWED, socket.MSG_DONTWAIT)
        self._closer.close(sock, peer_credentials(sock).uid)

    def _is_admitted(self, sock: socket.socket) -> bool:
        try:
            return self._administrators.include(sock, peer_credentials(sock))
        except OSError as error:
            self._report_failure(error)
            return False

    async def _back_off(self, _why: str) -> None:
        await trio.sleep(_BACK_OFF_SECONDS)

    async def _serve(self, sock: socket.socket) -> None:
        """Answer one administrator until it leaves."""
        own = peer_credentials(sock)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, admin.REPLY_BYTES_MAX)
            while (packet := await self._receive(sock)) is not None:
                if await self._handle(sock, packet):
                    break
        except trio.TooSlowError:
            pass  # it does not take its replies: it is disconnected
        except OSError as error:
            if error.errno not in PEER_GONE:
                self._report_failure(error)
        finally:
            self._closer.close(sock, own.uid)
            self._connections.release_on_behalf_of(sock)

    async def _receive(self, sock: socket.socket) -> bytes | None:
        """The next request, None at the end. It may be one byte longer than allowed.

        Every other task has a turn first, however fast an administrator asks.
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return sock.recv(admin.REQUEST_BYTES_MAX + 1, socket.MSG_DONTWAIT) or None
            except BlockingIOError:
                await trio.lowlevel.wait_readable(sock)

    async def _handle(self, sock: socket.socket, packet: bytes) -> bool:
        """Answer one request; whether the connection was for something else from then on."""
        number = 0
        try:
            head = parse_head(packet)
            number = head.id
            request = parse_request(head, packet)
            if is_change(request):
                verb = str(request.__struct_config__.tag)
                acted = AdministratorActed(verb=verb, **describe_request(request, sock))
                self._events.emit(acted)
            taker = self._takers.get(type(request))
            if taker is not None:
                await taker(request, sock, partial(self._reply, sock, number))
                return True
            handler = self._handlers.get(type(request))
            if handler is None:
                raise AdminFault("failed", "this bus cannot do that")
            await self._reply(sock, number, await handler(request))
        except AdminFault as fault:
            await self._reply(sock, number, fault)
        except Exception as error:
            if _is_end(error):
                raise
            why = self._report_failure(error)
            await self._reply(sock, number, AdminFault("failed", f"a bug of the bus: {why}"))
            return True
        return False

    async def _reply(
        self, sock: socket.socket, number: int, result: msgspec.Struct | AdminFault
    ) -> None:
        """Send a result or a fault. Raises TooSlowError, OSError."""
        packet = encode_reply(number, result)
        with trio.fail_after(_SEND_SECONDS_MAX):
            while True:
                try:
                    sock.send(packet, socket.MSG_DONTWAIT)
                    return
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(sock)

    def _report_failure(self, error: Exception) -> str:
        why, where = describe_bug(error)
        self._events.emit(AdminRequestFailed(why=why, where=where))
        return f"{why} ({where})"


def _is_end(error: Exception) -> bool:
    """Whether an administrator has gone, or does not take its replies."""
    return isinstance(error, trio.TooSlowError) or (
        isinstance(error, OSError) and error.errno in PEER_GONE
    )
