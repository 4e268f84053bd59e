"""A client that is nothing but a socket. Needs nothing but the standard library."""

import fcntl
import os
import select
import socket
import struct
import termios
import time

from tests.protocol.packets import Identity

PATIENCE_SECONDS = float(os.environ.get("SBUS_TEST_PATIENCE", "60"))
"""For which nothing comes that should. Only a test that fails waits for so long."""
PACKET_BYTES_MAX = 500_000
_SEND_BUFFER_BYTES = 212_992
"""The kernel doubles it, and then a packet of the largest size fits."""


def socket_address(text: str) -> str | bytes:
    """The address of a bus as programs are given it: a path, or `/dev/unix/abstract/HEX`."""
    prefix = "/dev/unix/abstract/"
    return b"\0" + bytes.fromhex(text.removeprefix(prefix)) if text.startswith(prefix) else text


def connect(address: str) -> socket.socket:
    """A connection to the bus with this address."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(PATIENCE_SECONDS)
    sock.connect(socket_address(address))
    return sock


class PlainLink:
    """One connection of this process. Nothing here waits longer than `PATIENCE_SECONDS`."""

    def __init__(self, sock: socket.socket) -> None:
        self.identity = Identity(os.getegid(), os.geteuid(), os.getpid())
        self.sock = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)

    def send(self, packet: bytes) -> None:
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.send(packet)

    def receive(self, *, wait: bool = True) -> bytes | None:
        """The next packet; b"" at the end; None if there is none."""
        self.sock.settimeout(PATIENCE_SECONDS if wait else 0)
        try:
            return self.sock.recv(PACKET_BYTES_MAX)
        except (TimeoutError, BlockingIOError):
            return None

    def shutdown(self, how: str) -> None:
        self.sock.shutdown(socket.SHUT_WR if how == "write" else socket.SHUT_RD)

    def close(self) -> None:
        self.sock.close()

    # -- what the bus has read -----------------------------------------------------------------
    def unread_bytes(self) -> int:
        """What the bus has not read yet of what was sent here."""
        if self.sock.fileno() < 0:
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))
        assert isinstance(count, int)
        return count

    def wait_until_read(self) -> None:
        """Return when the bus has read all of it, or has ended the connection."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause = 0.00002
        while self.unread_bytes() and not self._is_ended():
            assert time.monotonic() < deadline, "the bus does not read what was sent"
            time.sleep(pause)
            pause = min(2 * pause, 0.002)

    def _is_ended(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))
