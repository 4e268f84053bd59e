"""The number that the kernel gives a socket, and never again: the same for all copies of it."""

import socket
import struct

_SO_COOKIE = 57
_COOKIE = struct.Struct("=Q")


def socket_cookie(sock: socket.socket) -> int:
    """Raises OSError."""
    (cookie,) = _COOKIE.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE.size))
    return int(cookie)
