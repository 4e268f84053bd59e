"""A bus of bare packets for tests of the client library: the test itself says what the bus says.

The client connects to a real socket; there is no thread and no task here, so nothing happens in
the bus before the test makes it happen. Every wait is bounded.
"""

import socket
from pathlib import Path
from typing import Self

GREETING = b"CMSG !/notices/on"
WHOAMI = b"CMSG !/cred/whoami"
ORDER = b"CMSG order/queue"
IDENTITY = b"!/cred/5/6/7"
ANSWER = WHOAMI + b"\0" + IDENTITY
TIMEOUT_S = 10.0


class FakeBus:
    """Listens at `address`; after `accept`, `client` is the server's end of the connection."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory / "fake.socket")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(TIMEOUT_S)
        self._listener.bind(self.address)
        self._listener.listen(1)
        self.client: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        if self.client is not None:
            self.client.close()

    def accept(self) -> bytes:
        """Take the connection that is waiting, instead of an earlier one; returns what the client
        says first."""
        self.accept_silent()
        return self.receive()

    def accept_silent(self) -> None:
        """Take a connection whose client has said nothing yet."""
        if self.client is not None:
            self.client.close()
        self.client, _ = self._listener.accept()
        self.client.settimeout(TIMEOUT_S)
        # Room for the packets of a test, which nobody reads while they are sent.
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)

    def receive(self) -> bytes:
        assert self.client is not None
        return self.client.recv(1_000_000)

    def receive_nothing(self) -> None:
        assert self.client is not None
        self.client.setblocking(False)
        try:
            packet = self.client.recv(1_000_000)
        except BlockingIOError:
            return
        finally:
            self.client.settimeout(TIMEOUT_S)
        raise AssertionError(f"expected nothing, received {packet[:200]!r}")

    def send(self, *packets: bytes) -> None:
        assert self.client is not None
        for packet in packets:
            assert self.client.send(packet) == len(packet)

    def answer(self, question: bytes, *packets: bytes) -> None:
        assert self.receive() == question
        self.send(*packets)

    def hang_up(self) -> None:
        assert self.client is not None
        self.client.close()
