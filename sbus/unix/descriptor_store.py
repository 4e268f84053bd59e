"""The service manager's descriptor store, where a bus keeps descriptors in case all processes die.

The manager passes them to the next process of the service, each with its name. All names share one
environment string, so they are short: `@` and the number of a client, or `@m` and the time at which
a memory was stored, in hexadecimal digits. Source: FDSTORE in sd_notify(3).
"""

import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sbus.unix.closing import end_connection

PREFIX: Final = "@"
"""No name of a socket unit begins with it."""
NAMES_BYTES_MAX: Final = 120_000
"""Of all names, with a separator for each. Linux allows 131,072 bytes in a string."""
_NAME: Final = re.compile(f"{PREFIX}(m?)([0-9a-f]{{1,16}})")


def client_name(number: int) -> str:
    return f"{PREFIX}{number:x}"


def memory_name(stored_at_ns: int) -> str:
    return f"{PREFIX}m{stored_at_ns:x}"


@dataclass(frozen=True, slots=True)
class StoredDescriptors:
    """What an earlier process of this service has stored."""

    memories: dict[int, int] = field(default_factory=dict)
    """By the times at which they were stored; the last one counts."""
    clients: dict[int, socket.socket] = field(default_factory=dict)
    """Their connections, by their numbers."""

    @classmethod
    def of(cls, descriptors: Iterable[tuple[str, int]]) -> "StoredDescriptors":
        """Understand names of descriptors, which are taken. Anything unknown is closed."""
        memories: dict[int, int] = {}
        clients: dict[int, socket.socket] = {}
        for name, fd in descriptors:
            os.set_inheritable(fd, False)
            found = _NAME.fullmatch(name)
            number = int(found[2], 16) if found else 0
            sock = _connection(fd) if found and not found[1] and number not in clients else None
            if sock is not None:
                clients[number] = sock
            elif found and found[1] and number not in memories:
                memories[number] = fd
            else:
                os.close(fd)
        return cls(dict(sorted(memories.items())), dict(sorted(clients.items())))

    def __bool__(self) -> bool:
        return bool(self.memories or self.clients)

    def end_connections(self) -> None:
        for sock in self.clients.values():
            end_connection(sock)
            sock.close()


def _connection(fd: int) -> socket.socket | None:
    """The socket of a client, or None for any other file."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        return None
    if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        sock.detach()
        return None
    sock.setblocking(False)
    return sock
