"""The socket of a client that nobody reads or writes."""

import socket
from types import SimpleNamespace
from typing import cast


def no_socket() -> socket.socket:
    """Stands in for one that the kernel has given the number 0."""
    return cast(socket.socket, SimpleNamespace(getsockopt=lambda *_: bytes(8)))
