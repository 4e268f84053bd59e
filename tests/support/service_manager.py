"""A service manager as a service sees it: a socket for notifications."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MESSAGE_SECONDS_MAX = 60.0


class ServiceManager:
    """What `NOTIFY_SOCKET` names. Every message is its lines, by the names before the `=`."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory / "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.address)
        self.sock.setblocking(False)

    def next(self, timeout_s: float = MESSAGE_SECONDS_MAX) -> dict[str, str]:
        """The next message; empty when there is none in this time."""
        if not select.select([self.sock], [], [], timeout_s)[0]:
            return {}
        text = self.sock.recv(10_000).decode()
        return dict(line.split("=", 1) for line in text.split("\n"))

    def next_but_watchdog(self) -> dict[str, str]:
        """The next message that is not only a sign of life."""
        while (message := self.next()) == {"WATCHDOG": "1"}:
            pass
        return message

    def discard(self) -> None:
        """Forget the messages so far."""
        while self.next(0):
            pass

    def is_fed_within(self, timeout_s: float) -> bool:
        """Whether the watchdog is fed, from now on."""
        deadline = time.monotonic() + timeout_s
        while message := self.next(max(0.0, deadline - time.monotonic())):
            if message == {"WATCHDOG": "1"}:
                return True
        return False


@contextmanager
def service_manager(directory: Path) -> Iterator[ServiceManager]:
    manager = ServiceManager(directory)
    try:
        yield manager
    finally:
        manager.sock.close()
