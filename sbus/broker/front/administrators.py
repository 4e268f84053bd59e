"""Who may administer a bus."""

import os
import socket
from collections.abc import Iterable

from sbus.unix.credentials import Credentials, is_member
from sbus.unix.user_namespace import known_gids, known_uids


class Administrators:
    """Root, the bus's own user and the members of some groups. An id that the kernel could not
    translate is nobody's, the bus's own id included."""

    def __init__(self, gids: Iterable[int]) -> None:
        self._uids = known_uids({0, os.geteuid()})
        self._gids = known_gids(gids)

    def include(self, sock: socket.socket, own: Credentials) -> bool:
        """Whether the peer of `sock`, with these credentials, is one of them."""
        return own.uid in self._uids or is_member(sock, own, self._gids)
