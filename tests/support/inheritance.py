"""A connection that outlives the process that made it.

A child of this process connects and forks; the grandchild holds the connection, and sends and
receives on command. Then the child can end.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.raw_client import TIMEOUT_S

_PACKET_BYTES_MAX = 409_600


class Inherited:
    """`parent` connected; its child serves `send` and `receive` on the same connection."""

    def __init__(self, parent: int, orders: socket.socket) -> None:
        self.parent = parent
        self._orders = orders
        self._waited = False

    def send(self, packet: bytes) -> None:
        """Send on the connection, and come back when that is done."""
        self._orders.send(b"s" + packet)
        assert self._orders.recv(1) == b"."

    def receive(self) -> bytes:
        """The next packet of the connection; b"" at its end."""
        self._orders.send(b"r")
        return self._orders.recv(_PACKET_BYTES_MAX)[1:]

    def end_parent(self) -> None:
        """Let the process that connected end, and leave nothing of it."""
        self.end_parent_as_zombie()
        os.waitpid(self.parent, 0)
        self._waited = True

    def let_parent_go_on(self) -> None:
        """Let the process that connected do what it does instead of ending."""
        self._orders.send(b"e")

    def end_parent_as_zombie(self) -> None:
        self._orders.send(b"e")
        os.waitid(os.P_PID, self.parent, os.WEXITED | os.WNOWAIT)

    def clean_up(self) -> None:
        self._orders.close()
        if not self._waited:
            os.waitpid(self.parent, 0)


@contextmanager
def inherited_connection(
    address: str | bytes,
    become: Callable[[], None] = lambda: None,
    go_on: Callable[[], None] = lambda: None,
) -> Iterator[Inherited]:
    """Connect to `address` in a process that calls `become` first, and `go_on` before it ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(TIMEOUT_S)
    alive_read, alive_write = os.pipe()
    parent = os.fork()
    if parent == 0:
        status = 2
        try:
            ours.close()
            become()
            status = _connect_and_fork(address, theirs, alive_read, alive_write)
            go_on()
        finally:
            os._exit(status)
    theirs.close()
    os.close(alive_read)
    os.close(alive_write)
    inherited = Inherited(parent, ours)
    try:
        assert ours.recv(1) == b"+", "the child could not connect"
        yield inherited
    finally:
        inherited.clean_up()


def _connect_and_fork(
    address: str | bytes, orders: socket.socket, alive_read: int, alive_write: int
) -> int:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(TIMEOUT_S)
    connection.connect(address)
    if os.fork() == 0:
        os.close(alive_read)
        _serve(connection, orders, alive_write)
        os._exit(0)
    os.close(alive_write)
    connection.close()
    orders.close()
    os.read(alive_read, 1)
    return 0


def _serve(connection: socket.socket, orders: socket.socket, parent_may_end: int) -> None:
    """In the grandchild: obey commands until their sender is gone."""
    orders.send(b"+")
    while order := orders.recv(_PACKET_BYTES_MAX):
        if order == b"e":
            os.close(parent_may_end)
        elif order == b"r":
            orders.send(b"." + connection.recv(_PACKET_BYTES_MAX))
        else:
            connection.send(order[1:])
            orders.send(b".")
