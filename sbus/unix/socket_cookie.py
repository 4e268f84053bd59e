"""The number by which the kernel identifies a socket and all copies of it; it is never reused."""

import socket
import struct

_SO_COOKIE = 57
_COOKIE = struct.Struct("=Q")


def socket_cookie(sock: socket.socket) -> int:
    """Raises OSError."""
    (cookie,) = _COOKIE.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE.size))
    return int(cookie)
