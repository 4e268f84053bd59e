"""The admin socket: who may ask, one request after the other, and what they are answered.

Only root, the bus's own user and members of the admin groups are answered, by the kernel's word on
who connected. A request that cannot be understood is answered with what is wrong, and costs nothing
more. Whoever does not take its answers is disconnected.
A fault of this project in answering ends the connection that it happened on, and is reported: the
front, and with it the bus, must not end for a look at it.

This module does not know what the answers are.
"""

import os
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import trio

from sbus.broker.admin.handlers import AdminFault
from sbus.protocol import admin
from sbus.unix.credentials import peer_credentials, peer_groups
from sbus.unix.errno_sets import OUT_OF_RESOURCES, PEER_GONE
from sbus.unix.open_files import administrators_max
from sbus.validation import explain

_SEND_SECONDS_MAX = 10.0
_BACK_OFF_SECONDS = 0.1

T = TypeVar("T")

_decoder: msgspec.json.Decoder[admin.Request] = msgspec.json.Decoder(admin.Request)
_encoder = msgspec.json.Encoder()


class _Head(msgspec.Struct, frozen=True):
    """Of a request, what has to be right before the rest is looked at."""

    verb: str
    id: int = 0
    version: int = admin.VERSION


_head_decoder = msgspec.json.Decoder(_Head)
_VERBS = frozenset(str(request.__struct_config__.tag) for request in admin.RESULTS)


class AdminServer:
    """Serves on `listener`, which it borrows. `answer` finds the result of a request,
    `begin_stream` begins one on a connection, of which it keeps a copy, `on_failure` is told of
    faults."""

    def __init__(
        self,
        listener: socket.socket,
        gids: frozenset[int],
        answer: Callable[[admin.Request], Awaitable[msgspec.Struct]],
        begin_stream: Callable[
            [admin.Monitor | admin.Events, socket.socket], Awaitable[msgspec.Struct]
        ],
        on_failure: Callable[[Exception], None],
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._gids = gids
        self._answer = answer
        self._begin_stream = begin_stream
        self._on_failure = on_failure
        self._room = trio.CapacityLimiter(max(1, administrators_max()))

    async def run(self) -> None:
        """Let administrators in, for ever."""
        async with trio.open_nursery() as connections:
            while True:
                await self._room.acquire_on_behalf_of(sock := await self._next())
                connections.start_soon(self._serve, sock)

    async def _next(self) -> socket.socket:
        """The next connection."""
        while True:
            try:
                return self._listener.accept()[0]
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._listener)
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                await trio.sleep(_BACK_OFF_SECONDS)

    def _may_ask(self, sock: socket.socket) -> bool:
        own = peer_credentials(sock)
        if own.uid in (0, os.geteuid()) or own.gid in self._gids:
            return True
        return bool(self._gids) and not self._gids.isdisjoint(peer_groups(sock))

    async def _serve(self, sock: socket.socket) -> None:
        """Answer one administrator until it leaves."""
        try:
            with sock:
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, admin.REPLY_BYTES_MAX)
                if self._may_ask(sock):
                    while (packet := await self._receive(sock)) is not None:
                        if await self._handle(sock, packet):
                            break
                else:
                    text = "only root, the bus's own user and its admin group may administer it"
                    await self._reply(sock, 0, AdminFault("not-allowed", text))
        except trio.TooSlowError:
            pass  # it does not take its answers: it is disconnected
        except Exception as error:
            if not (isinstance(error, OSError) and error.errno in PEER_GONE):
                self._on_failure(error)
        finally:
            self._room.release_on_behalf_of(sock)

    async def _receive(self, sock: socket.socket) -> bytes | None:
        """The next request as it came, None at the end. One byte more than a request may have.

        Everybody else has a turn first, however fast somebody asks.
        """
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return sock.recv(admin.REQUEST_BYTES_MAX + 1) or None
            except BlockingIOError:
                await trio.lowlevel.wait_readable(sock)

    async def _handle(self, sock: socket.socket, packet: bytes) -> bool:
        """Answer one request; whether the connection serves a stream from now on."""
        number = 0
        try:
            head = _parse_head(packet)
            number = head.id
            request = _parse(head, packet)
            if isinstance(request, admin.Monitor | admin.Events):
                await self._reply(sock, number, await self._begin_stream(request, sock))
                return True
            await self._reply(sock, number, await self._answer(request))
        except AdminFault as fault:
            await self._reply(sock, number, fault)
        return False

    async def _reply(
        self, sock: socket.socket, number: int, what: msgspec.Struct | AdminFault
    ) -> None:
        """Send a result or a fault. Raises TooSlowError, OSError."""
        packet = _encode(number, what)
        with trio.fail_after(_SEND_SECONDS_MAX):
            while True:
                try:
                    sock.send(packet)
                    return
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(sock)


def _parse_head(packet: bytes) -> _Head:
    """The head of a request. Raises AdminFault."""
    if len(packet) > admin.REQUEST_BYTES_MAX:
        raise AdminFault("bad-request", f"a request has at most {admin.REQUEST_BYTES_MAX} bytes")
    return _decode(_head_decoder, packet)


def _parse(head: _Head, packet: bytes) -> admin.Request:
    """The request with this head. Raises AdminFault."""
    if head.version != admin.VERSION:
        raise AdminFault(
            "unsupported-version", f"this bus speaks version {admin.VERSION} of the admin protocol"
        )
    if head.verb not in _VERBS:
        known = ", ".join(sorted(_VERBS))
        text = f"there is no verb {head.verb[:64]!r}; choose from {known}"
        raise AdminFault("unknown-verb", text)
    return _decode(_decoder, packet, head.verb)


def _decode(decoder: msgspec.json.Decoder[T], packet: bytes, verb: str = "") -> T:
    """What a packet holds. Raises AdminFault, which names the `verb` if that is known."""
    try:
        return decoder.decode(packet)
    except msgspec.DecodeError as error:
        raise AdminFault("bad-request", explain(error, verb)) from error
    except UnicodeDecodeError as error:
        raise AdminFault("bad-request", "the request holds a string that is no UTF-8") from error
    except RecursionError as error:
        raise AdminFault("bad-request", "the request is nested too deeply") from error


def _encode(number: int, what: msgspec.Struct | AdminFault) -> bytes:
    if isinstance(what, AdminFault):
        fault = admin.Fault(what.code, str(what))
        return _encoder.encode(admin.Reply(version=admin.VERSION, id=number, error=fault))
    result = msgspec.Raw(_encoder.encode(what))
    packet = _encoder.encode(admin.Reply(version=admin.VERSION, id=number, result=result))
    if len(packet) > admin.REPLY_BYTES_MAX:
        too_large = AdminFault("failed", "the answer is too large; ask for a smaller page")
        return _encode(number, too_large)
    return packet
