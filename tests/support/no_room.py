"""A socket whose kernel has no room for packets with descriptors, for some time."""

import os
import socket
from typing import Any, Self


class NoRoomSocket(socket.socket):
    """Takes over another socket; `errors` are what the next calls of `sendmsg` fail with."""

    errors: list[int]

    @classmethod
    def of(cls, sock: socket.socket, *errors: int) -> Self:
        own = cls(fileno=sock.detach())
        own.errors = list(errors)
        return own

    def sendmsg(self, *args: Any) -> int:
        if self.errors:
            code = self.errors.pop(0)
            raise OSError(code, os.strerror(code))
        return super().sendmsg(*args)
