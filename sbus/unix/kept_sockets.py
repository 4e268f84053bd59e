"""Connections that outlive what uses them: a part of a process, and, with a service manager that
has a store for descriptors, the process itself.

Each has a name. The cookie of its socket tells whether what a file remembers is about this one.
"""

import socket
import zlib
from collections.abc import Mapping

from sbus.unix.closing import end_connection
from sbus.unix.notify import Notifier
from sbus.unix.socket_cookie import socket_cookie


def socket_name(kind: str, channel: str, *settings: object) -> str:
    """A name that differs for other settings."""
    return f"{kind}.{channel}.{zlib.crc32(repr(settings).encode()):08x}"


class KeptSockets:
    """Those of one process; `passed` are descriptors that an earlier one has stored."""

    def __init__(self, notifier: Notifier, passed: Mapping[str, int]) -> None:
        self._notifier = notifier
        self._sockets = {name: socket.socket(fileno=fd) for name, fd in passed.items()}
        for sock in self._sockets.values():
            sock.setblocking(False)

    def claim(self, name: str, cookie: int) -> socket.socket | None:
        """A copy of this socket, if it has this cookie; otherwise it is ended."""
        sock = self._sockets.get(name)
        if sock is not None and socket_cookie(sock) == cookie:
            return sock.dup()
        self.end(name)
        return None

    def keep(self, name: str, sock: socket.socket) -> None:
        """Keep a copy of this one."""
        self._sockets[name] = sock.dup()
        if self._notifier.stored_max:
            self._notifier.store(name, sock.fileno())

    def end(self, name: str) -> None:
        """End this connection, if there is one."""
        sock = self._sockets.pop(name, None)
        if sock is not None:
            self._notifier.remove_stored(name)
            end_connection(sock)
            sock.close()

    def end_others(self, names: set[str]) -> None:
        """End all connections but these."""
        for name in self._sockets.keys() - names:
            self.end(name)
