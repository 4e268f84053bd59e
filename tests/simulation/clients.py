"""Simulated clients. What they send and receive is in a log, which `tests.history` judges."""

import socket

from sbus.unix.credentials import Credentials
from tests.history.log import ANNOUNCED, CLOSED, ENDED, OPENED, RECEIVED, SENT, Entries

_PACKET_BYTES_MAX = 8192
_WHOAMI = b"CMSG !/cred/whoami"
_ASKING_BYTES = 40
"""At most, of asking for a receipt."""


class SimulatedClient:
    """The client's end of a connection."""

    def __init__(self, number: int, own: Credentials, sock: socket.socket, log: Entries) -> None:
        self.number = number
        self.own = own
        self._sock = sock
        self._log = log
        sock.setblocking(False)
        self.published = 0
        """Messages."""
        self.patterns: list[bytes] = []
        """Those to which it is subscribed."""
        self.names: set[bytes] = set()
        """Those for which it has asked."""
        self.replies = 0
        self.has_ended = False
        self.has_left = False
        log.write(number, OPENED, b"slash %d %d %d %d" % (own.gid, own.uid, own.pid, number))

    @property
    def is_there(self) -> bool:
        return not self.has_left and not self.has_ended

    # -- sending -------------------------------------------------------------------------------
    def _send(self, packet: bytes) -> bool:
        """Whether the kernel took it."""
        try:
            self._sock.send(packet)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        self._log.write(self.number, SENT, packet)
        return True

    def control(self, key: bytes) -> bool:
        return self._send(b"CMSG " + key)

    def publish(self, key: bytes, size: int) -> None:
        self.published += self._send(self._message(key, size))

    def ask(self, key: bytes, size: int) -> None:
        """Publish a message, and ask for a receipt."""
        message = self._message(key, size - _ASKING_BYTES).removeprefix(b"MSG ")
        self.published += self._send(b"CMSG !/publish\0%d\0%b" % (self.published, message))

    def _message(self, key: bytes, size: int) -> bytes:
        """Unlike all others."""
        packet = b"MSG %b\0%d %d " % (key, self.number, self.published)
        return packet + b"." * (size - len(packet))

    def subscribe(self, pattern: bytes) -> None:
        if self._send(b"SUB " + pattern):
            self.patterns.append(pattern)

    def unsubscribe(self, at: int) -> None:
        if self._send(b"UNSUB " + self.patterns[at]):
            del self.patterns[at]

    def request(self) -> None:
        """Ask for a reply, which confirms everything before it."""
        self._send(_WHOAMI)

    def join(self, name: bytes, will: bytes, told: list[bytes]) -> None:
        """Ask for a name; `told` are the packets that may tell of it."""
        if self._send(b"CMSG !/join\0" + name + (b"\0" + will if will else b"")):
            self.names.add(name)
            for packet in told:
                self._log.write(self.number, ANNOUNCED, packet)

    def leave(self) -> None:
        self.has_left = True
        self._log.write(self.number, CLOSED)
        self._sock.close()

    # -- receiving -----------------------------------------------------------------------------
    def read(self, packets_max: int = 1_000_000) -> int:
        """Read what is here; returns how many packets that was."""
        count = 0
        while self.is_there and count < packets_max:
            try:
                packet = self._sock.recv(_PACKET_BYTES_MAX)
            except BlockingIOError:
                break
            except ConnectionResetError:  # once, if the bus has left something unread
                continue
            if packet:
                count += 1
                self.replies += packet.startswith(_WHOAMI)
                self._log.write(self.number, RECEIVED, packet)
            else:
                self.has_ended = True
                self._log.write(self.number, ENDED)
        return count
