"""A connection to the admin socket of a bus, without an event loop.

Every request waits for its reply. After `monitor` or `events` the connection is for that stream
only.
"""

import errno
import math
import os
import socket
import struct
import time
from collections import deque
from typing import Self, TypeVar

import msgspec

from sbus.client.program_names import ProgramNames
from sbus.client.sockets import connect_error
from sbus.errors import BusError, Disconnected, ProtocolViolation
from sbus.protocol import admin
from sbus.protocol.admin_streams import BEGINNING
from sbus.unix.address import admin_address, parse_address
from sbus.unix.default_address import default_address
from sbus.unix.readiness import is_readable_within

R = TypeVar("R", bound=msgspec.Struct)

_reply_decoder = msgspec.json.Decoder(admin.Reply)

REPLY_BYTES_MAX = 2 * admin.REPLY_BYTES_MAX
_AHEAD_MAX = 1_000
"""Packets of a stream that are kept until the reply comes."""
_NO_ACCESS = "only root, the bus's own user and its admin group may administer it"
_ADVICE = {
    errno.EAGAIN: "too many others are connecting; try again",
    errno.ENOENT: "is sbusd running there, and does it have an admin socket?",
    errno.ECONNREFUSED: "is sbusd running? Nothing listens there",
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EPROTOTYPE: "that socket is of another type and not an admin socket",
}


class AdminError(BusError):
    """The bus did not carry out a request; `code` is the one that it sent."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code
        self.text = text


class AdminConnection:
    """A connection to the admin socket of the bus at `bus_address` (None: the default bus), or to
    the admin socket at `address`, if given. A reply may take `timeout_seconds`.

    Raises AddressError when there is no such socket, or it is not accessible.
    """

    def __init__(
        self,
        bus_address: str | None = None,
        *,
        address: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        if address is None:
            parsed = admin_address(parse_address(bus_address or default_address()))
        else:
            parsed = parse_address(address)
        self.address = parsed.format()
        self._timeout_seconds = timeout_seconds
        self.program_names = ProgramNames()
        self._requests = 0
        self._buffer = bytearray(REPLY_BYTES_MAX)
        self._ahead: deque[bytes] = deque(maxlen=_AHEAD_MAX)
        """Packets of a stream that arrived before the reply to the request that began it."""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._connect(parsed.sockaddr())
        except OSError as error:
            self._sock.close()
            raise connect_error(self.address, error, _ADVICE) from error
        self._sock.settimeout(timeout_seconds)

    def _connect(self, sockaddr: str | bytes) -> None:
        """Connect, and wait for a place in the listen queue, which a non-blocking socket would not
        do. Source: socket(7); SO_SNDTIMEO is the time limit of `connect` too."""
        limit = struct.pack("ll", math.ceil(self._timeout_seconds), 0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._sock.connect(sockaddr)

    def fileno(self) -> int:
        return self._sock.fileno()

    def ask(self, request: admin.Request, expected: type[R]) -> R:
        """The result of a request, of the type in `admin.RESULTS`.

        Raises AdminError when the bus refuses it, Disconnected, ProtocolViolation.
        """
        self._requests += 1
        packet = msgspec.json.encode(msgspec.structs.replace(request, id=self._requests))
        if len(packet) > admin.REQUEST_BYTES_MAX:
            raise AdminError("bad-request", f"the request has {len(packet)} bytes, too many")
        try:
            self._sock.send(packet)
        except OSError as error:
            # The bus may have sent the reason before it closed the connection.
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
        return self._result(expected)

    def _result(self, expected: type[R]) -> R:
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            packet = self._receive(max(0.0, deadline - time.monotonic()))
            if packet.startswith(BEGINNING):
                self._ahead.append(packet)
                continue
            try:
                reply = _reply_decoder.decode(packet)
                if reply.error is not None:
                    raise AdminError(reply.error.code, reply.error.text)
            except msgspec.DecodeError as error:
                raise ProtocolViolation(f"{self.address} is no admin socket: {error}") from error
            if reply.id == self._requests and isinstance(reply.result, msgspec.Raw):
                return self._understood(reply.result, expected)

    def _understood(self, result: msgspec.Raw, expected: type[R]) -> R:
        try:
            return self.program_names.in_result(msgspec.json.decode(result, type=expected))
        except msgspec.DecodeError as error:
            raise ProtocolViolation(
                f"the bus at {self.address} sent a result of another version ({error})"
            ) from error

    def receive(self, timeout_seconds: float | None) -> bytes:
        """The next packet. Raises Disconnected, TimeoutError."""
        return self._ahead.popleft() if self._ahead else self._receive(timeout_seconds)

    def _receive(self, timeout_seconds: float | None) -> bytes:
        try:
            return self._receive_nowait()
        except BlockingIOError:
            if not is_readable_within(self._sock, timeout_seconds):
                raise TimeoutError(
                    f"{self.address} gave no answer within {timeout_seconds:g} s"
                ) from None
        return self._receive_nowait()

    def _receive_nowait(self) -> bytes:
        """Raises BlockingIOError: a socket with a time limit does not block by itself."""
        try:
            length = os.readv(self._sock.fileno(), [self._buffer])
        except ConnectionResetError:
            # Reported once, before the packets that are still there and the end.
            length = os.readv(self._sock.fileno(), [self._buffer])
        if not length:
            raise Disconnected("the bus has ended or was upgraded, or has closed this connection")
        return bytes(memoryview(self._buffer)[:length])

    def detach(self) -> socket.socket:
        """The socket of this connection, which is used for something else from now on."""
        return socket.socket(fileno=self._sock.detach())

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
