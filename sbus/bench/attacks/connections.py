"""Connections of one process to a bus, and counts of what happened to them.

No system call waits for longer than a time that is given, whatever the bus does.
"""

import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Iterable

from sbus.limits import Limits
from sbus.unix.address import parse_address

WAIT_SECONDS, PATIENCE_SECONDS = 0.05, 10.0
SEND_BUFFER_BYTES = 212_992
"""The kernel doubles it, and then a packet of the largest size fits."""
RECEIVED_MAX = 64
WHOAMI, NOTICES = b"CMSG !/cred/whoami", b"CMSG !/notices/on"
ERROR, LOST = b"CMSG !/error\0", b"CMSG !/lost\0"


class Connections:
    """Calls raise ConnectionError when the bus has ended the connection, and BlockingIOError when
    they have waited in vain."""

    def __init__(self, address: str) -> None:
        self._address = parse_address(address).sockaddr()
        self._socks: set[socket.socket] = set()
        self._buffer = bytearray(Limits().packet_bytes_max + 1)
        self.counts: Counter[str] = Counter()
        """`connected`, `sent`, `received`, `losses` (notices of them), `disconnected`, and each
        code of `!/error` with underscores."""

    def connect(self, wait_seconds: float = WAIT_SECONDS) -> socket.socket:
        """A connection that waits for so long in every call."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        seconds, fraction = divmod(wait_seconds, 1)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            timeval = struct.pack("@ll", int(seconds), round(fraction * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, option, timeval)
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            sock.connect(self._address)
            stack.pop_all()
        self._socks.add(sock)
        self.counts["connected"] += 1
        return sock

    def admitted(self, packets: Iterable[bytes] = ()) -> socket.socket:
        """A connection that has sent these packets, all of which the bus has processed."""
        sock = self.connect(PATIENCE_SECONDS)
        self.tell(sock, (NOTICES, *packets, WHOAMI))
        while not self._receive_one(sock, 0).startswith(WHOAMI):
            pass
        return sock

    def send(self, sock: socket.socket, packet: bytes, flags: int = 0) -> bool:
        """Whether the socket took the packet."""
        try:
            sock.send(packet, flags)
        except BlockingIOError:
            return False
        self.counts["sent"] += 1
        return True

    def tell(self, sock: socket.socket, packets: Iterable[bytes]) -> None:
        """Send many packets, and receive the replies that come meanwhile."""
        for number, packet in enumerate(packets):
            if not self.send(sock, packet):
                raise BlockingIOError("the bus does not read")
            if number % RECEIVED_MAX == 0:
                self.receive(sock)

    def receive(self, sock: socket.socket) -> None:
        """Take some of what is there."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(RECEIVED_MAX):
                self._receive_one(sock, socket.MSG_DONTWAIT)

    def wait_for_packet(self, sock: socket.socket) -> None:
        """Take the next packet."""
        self._receive_one(sock, 0)

    def _receive_one(self, sock: socket.socket, flags: int) -> bytes:
        """The head of the next packet."""
        size = sock.recv_into(self._buffer, 0, flags)
        if size == 0:
            raise ConnectionResetError("the bus hung up")
        head = bytes(self._buffer[: min(size, 100)])
        if head.startswith(ERROR):
            code, _, _ = head.removeprefix(ERROR).partition(b" ")
            self.counts[code.decode().replace("-", "_")] += 1
        else:
            self.counts["losses" if head.startswith(LOST) else "received"] += 1
        return head

    def close(self, sock: socket.socket) -> None:
        """Leave, and count whether the bus was first."""
        self._socks.discard(sock)
        with sock:
            try:
                self.receive(sock)
            except ConnectionError:
                self.counts["disconnected"] += 1

    def close_all(self) -> None:
        for sock in list(self._socks):
            self.close(sock)
