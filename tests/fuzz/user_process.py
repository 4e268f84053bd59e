"""A process of a user, which connects to the bus on demand and hands the connections over.

What the bus knows of the clients is then true of a real process: its ids, and that it lives.
"""

import os
import socket
from contextlib import suppress

from tests.fuzz.access_model import User
from tests.history.matching import Ids
from tests.support.users import become


class UserProcess:
    """A process of `user`, until `end`."""

    def __init__(self, user: User, address: str) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._link.close()
                become(user.uid, user.gid)()
                _connect_on_demand(theirs, address)
            finally:
                os._exit(0)
        theirs.close()
        self.ids: Ids = b"%d" % user.gid, b"%d" % user.uid, b"%d" % self._pid
        """As keys spell them."""

    def connect(self) -> socket.socket:
        """A blocking connection of this process."""
        self._link.send(b"connect")
        _, fds, _, _ = socket.recv_fds(self._link, 1, 1)
        assert fds, "the process could not connect"
        return socket.socket(fileno=fds[0])

    def end(self) -> None:
        # Later processes have copies of this end: to close it would not be enough.
        self._link.shutdown(socket.SHUT_RDWR)
        self._link.close()
        os.waitpid(self._pid, 0)


def _connect_on_demand(link: socket.socket, address: str) -> None:
    with suppress(ConnectionResetError, BrokenPipeError):
        while link.recv(10):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(address)
                socket.send_fds(link, [b"."], [sock.fileno()])
