"""A client of the bus that is nothing but a socket.

Tests of the broker send and receive bytes, as docs/protocol.md has them, so that a fault shared by
the broker and this project's client library cannot hide. Every wait is bounded.
"""

import re
import socket
import struct
from contextlib import suppress
from typing import Self

from sbus.unix.address import parse_address

WHOAMI = b"!/cred/whoami"
PACKET_BYTES_MAX = 409_600
TIMEOUT_S = 60.0
"""A busy machine serves in seconds; a bus that hangs, never."""
_DOCUMENTED_CONTROL = re.compile(
    rb"!/(cred/whoami|sync|me|publish|notices/on|join|leave|members)"
    rb"|echo/(on|off)|sender/(on|off)|age/.*|order/(queue|stack|random|latest)"
    rb"|blocking/soft/(queue|discard|block|error)|blocking/hard/(discard|block|error)"
)
"""The control keys of docs/protocol.md. The bus ignores all others, and a test would not notice."""


class RawClient:
    """One connection. `sock` is open to anything a test wants to do with it."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Connect within `timeout_s`; OSError when the bus does not let this client in."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # The kernel doubles it, and then a packet of the largest size fits.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)
            # With `settimeout`, connecting would not wait at a full listen queue, but fail.
            limit = struct.pack("@ll", *divmod(round(timeout_s * 1_000_000), 1_000_000))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self.sock.connect(parse_address(address).sockaddr())
            self.sock.settimeout(timeout_s)
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()

    # -- packets -------------------------------------------------------------------------------

    def send(self, packet: bytes, *, timeout_s: float = TIMEOUT_S) -> None:
        """Send one packet; TimeoutError when the bus does not take it in time."""
        self.sock.settimeout(timeout_s)
        sent = self.sock.send(packet)
        assert sent == len(packet), f"{sent} of {len(packet)} bytes were sent"

    def receive(self, timeout_s: float = TIMEOUT_S) -> bytes:
        """The next packet; b"" at the end of the connection; TimeoutError when there is none."""
        self.sock.settimeout(timeout_s)
        packet, _, flags, _ = self.sock.recvmsg(PACKET_BYTES_MAX + 1)
        assert not flags & socket.MSG_TRUNC, "a packet was longer than the largest there is"
        return packet

    def receive_nothing(self) -> None:
        """Nothing is here now. Be behind a `sync` or another barrier when you ask."""
        self.sock.settimeout(0)
        try:
            packet = self.sock.recv(PACKET_BYTES_MAX + 1)
        except BlockingIOError:
            return
        what = packet[:200] if packet else "the end of the connection"
        raise AssertionError(f"expected nothing, received {what!r}")

    def receive_until_closed(self) -> list[bytes]:
        """Everything up to the end of the connection, which the bus brings about."""
        packets = []
        while packet := self.receive():
            packets.append(packet)
        return packets

    # -- the protocol's words ------------------------------------------------------------------

    def sub(self, pattern: bytes) -> None:
        self.send(b"SUB " + pattern)

    def unsub(self, pattern: bytes) -> None:
        self.send(b"UNSUB " + pattern)

    def pub(self, key: bytes, payload: bytes) -> None:
        self.send(b"MSG " + key + b"\0" + payload)

    def control(self, key: bytes) -> None:
        """Send a control message, `key` or `key\0payload`, with a documented key."""
        assert _DOCUMENTED_CONTROL.fullmatch(key.partition(b"\0")[0]), f"no control key: {key!r}"
        self.send(b"CMSG " + key)

    def whoami(self) -> bytes:
        """The credentials the bus has for this client; its reply must be the next packet."""
        before, credentials = self._ask_whoami()
        assert not before, f"{len(before)} packets before the reply, first {before[0][:200]!r}"
        return credentials

    def sync(self) -> list[bytes]:
        """Wait until the bus has served all packets; returns what came before its reply."""
        return self._ask_whoami()[0]

    def is_served(self, refusal: str, *, may_be_silent: bool = False) -> bool:
        """Whether the bus replies to this new client; if not, it has said this code and left.

        It may say nothing to a user whom it has refused so often that telling has cost enough."""
        with suppress(BrokenPipeError):  # it was refused before it could ask
            self.control(WHOAMI)
        try:
            packet = self.receive()
        except ConnectionResetError:  # before the bus had read what it asks
            packet = b""
        if packet.startswith(b"CMSG " + WHOAMI):
            return True
        is_silent = may_be_silent and not packet
        assert is_silent or packet.startswith(f"CMSG !/error\0{refusal} ".encode()), packet
        assert not self.receive()
        return False

    def _ask_whoami(self) -> tuple[list[bytes], bytes]:
        self.control(WHOAMI)
        reply = b"CMSG " + WHOAMI + b"\0"
        before: list[bytes] = []
        while not (packet := self.receive()).startswith(reply):
            assert packet, f"the bus closed the connection after {before[-3:]!r}"
            before.append(packet)
        return before, packet.removeprefix(reply)
