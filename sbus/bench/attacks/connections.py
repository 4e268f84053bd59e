"""Connections of one process to a bus, and counts of what happened to them.

No call waits for longer than `PATIENCE_SECONDS`, whatever the bus does.
"""

import contextlib
import signal
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator

from sbus.limits import Limits
from sbus.unix.address import parse_address

WAIT_SECONDS = 0.05
"""For one system call."""
PATIENCE_SECONDS = 10.0
"""To be admitted, to be read, or for a reply."""
SEND_BUFFER_BYTES = 212_992
"""The kernel doubles it, and then a packet of the largest size fits."""
RECEIVED_AT_ONCE, RECEIVED_AT_LAST = 64, 1_024
WHOAMI = b"CMSG !/cred/whoami"
NOTICES = b"CMSG !/notices/on"
ERROR, LOST = b"CMSG !/error\0", b"CMSG !/lost\0"
_TIMEVAL = struct.pack("@ll", 0, round(WAIT_SECONDS * 1e6))
_NO_LINGER = struct.pack("ii", 0, 0)


def tries(what: str) -> Iterator[None]:
    """As many as patience allows, each of at most `WAIT_SECONDS`; then a TimeoutError."""
    for _ in range(round(PATIENCE_SECONDS / WAIT_SECONDS)):
        yield
    raise TimeoutError(what)


class Connections:
    """Calls raise ConnectionError when the bus has ended the connection, BlockingIOError or
    TimeoutError when it keeps this process waiting."""

    def __init__(self, address: str) -> None:
        self._address = parse_address(address).sockaddr()
        self._socks: set[socket.socket] = set()
        self._buffer = bytearray(Limits().packet_bytes_max + 1)
        self.counts: Counter[str] = Counter()
        """`connected`, `queue_full`, `sent`, `held` (not taken at once), `received`, `losses`
        (notices of them), `disconnected`, and each code of `!/error` with underscores."""

    # -- coming and going --------------------------------------------------------------------------
    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL)
        try:
            sock.connect(self._address)
        except BlockingIOError:
            self.counts["queue_full"] += 1
            sock.close()
            raise
        self.counts["connected"] += 1
        self._socks.add(sock)
        return sock

    def admitted(self, packets: Iterable[bytes] = ()) -> socket.socket:
        """A connection that has sent these packets, all of which the bus has processed."""
        sock = self._connect_patiently()
        self.tell(sock, (NOTICES, *packets, WHOAMI))
        for _ in tries("the bus does not answer whoami"):
            with contextlib.suppress(BlockingIOError):
                while not self._receive_one(sock, 0).startswith(WHOAMI):
                    pass
                break
        return sock

    def _connect_patiently(self) -> socket.socket:
        for _ in tries("the listen queue stays full"):
            with contextlib.suppress(BlockingIOError):
                return self.connect()
        raise AssertionError("tries end with an exception")

    def close(self, sock: socket.socket) -> None:
        """Leave, and count why if the bus was first."""
        self._socks.discard(sock)
        with sock:
            try:
                self.receive(sock, RECEIVED_AT_LAST)
            except ConnectionError:
                self.counts["disconnected"] += 1

    def close_all(self) -> None:
        """Wait a little for what the bus has to say, and leave."""
        for sock in list(self._socks):
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._receive_one(sock, 0)
            self.close(sock)

    # -- packets -----------------------------------------------------------------------------------
    def send(self, sock: socket.socket, packet: bytes, flags: int = 0) -> bool:
        """Whether the socket took the packet."""
        try:
            sock.send(packet, flags)
        except BlockingIOError:
            self.counts["held"] += 1
            return False
        self.counts["sent"] += 1
        return True

    def tell(self, sock: socket.socket, packets: Iterable[bytes]) -> None:
        """Send all of these, and receive what the bus replies meanwhile."""
        for packet in packets:
            for _ in tries("the bus does not read"):
                if self.send(sock, packet):
                    break
                self.receive(sock)

    def send_descriptor(self, sock: socket.socket, packet: bytes, carried: socket.socket) -> None:
        """Send a packet with a descriptor whose last close is to be the bus's."""
        try:
            socket.send_fds(sock, [packet], [carried.fileno()])
        except PermissionError:
            self.counts["descriptors_refused"] += 1
            carried.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        else:
            self.counts["descriptors_sent"] += 1
        finally:
            # The bus may have been faster; a signal ends the wait.
            signal.setitimer(signal.ITIMER_REAL, WAIT_SECONDS)
            carried.close()
            signal.setitimer(signal.ITIMER_REAL, 0)

    def receive(self, sock: socket.socket, packets_max: int = RECEIVED_AT_ONCE) -> None:
        """Take what is there, and not more than so many packets."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(packets_max):
                self._receive_one(sock, socket.MSG_DONTWAIT)

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
