"""A bus of bare packets for tests of the client library: the test itself says what the bus says.

The client connects to a real socket. Nothing happens in the bus before the test makes it happen,
except that a thread answers the first barrier of a connection that is `admitting`, as connecting
waits for it. Every wait is bounded.
"""

import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

GREETING = b"CMSG !/notices/on"
WHOAMI = b"CMSG !/cred/whoami"
ORDER = b"CMSG order/queue"
IDENTITY = b"!/cred/5/6/7"
ANSWER = WHOAMI + b"\0" + IDENTITY
TIMEOUT_S = 60.0
LOOK_S = 0.01
"""How often the thread looks whether it is still wanted."""


class FakeBus:
    """Listens at `address`; after `accept`, `client` is the server's end of the connection."""

    at: ClassVar[dict[str, "FakeBus"]] = {}
    """Those that admit the clients of the fixture `connect`."""

    def __init__(self, directory: Path, *, admits: bool = True) -> None:
        self.address = str(directory / "fake.socket")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(TIMEOUT_S)
        self._listener.bind(self.address)
        self._listener.listen(1)
        self.client: socket.socket | None = None
        self._said: deque[bytes] = deque()
        """The first packets of a connection that was admitted, up to its barrier."""
        if admits:
            self.at[self.address] = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.at.pop(self.address, None)
        self._listener.close()
        if self.client is not None:
            self.client.close()

    def accept(self) -> bytes:
        """Take the connection that is waiting, instead of an earlier one, unless it was admitted;
        returns what the client says first."""
        if not self._said:
            self.accept_silent()
        return self.receive()

    @contextmanager
    def admitting(self) -> Iterator[None]:
        """Take a connection that is made during the block, and answer its first barrier."""
        is_over = threading.Event()
        thread = threading.Thread(target=self._admit, args=(is_over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _admit(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            if select.select([self._listener], [], [], LOOK_S)[0]:
                self.accept_silent()
                assert self.client is not None
                said = [self.client.recv(1_000_000)]
                while said[-1] and not said[-1].startswith((WHOAMI, b"MSG sbus.sync.")):
                    said.append(self.client.recv(1_000_000))
                self._said = deque(said[:-1])
                self.send(ANSWER if said[-1] == WHOAMI else said[-1])
                return

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
        if self._said:
            return self._said.popleft()
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
