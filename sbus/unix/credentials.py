"""The credentials of the peer of a unix socket, as the kernel reports them.

`SO_PEERCRED` and `SO_PEERGROUPS` describe the peer at the time of its connect(2): they cannot be
forged and do not change.
"""

import array
import errno
import os
import socket
import struct

import msgspec

from sbus.unix.peer_process import began_at_ticks, has_peer_pidfds

_SO_PEERGROUPS = 59
_UCRED = struct.Struct("iII")
_GETSOCKOPT_BYTES_MAX = 1024
"""The most that `socket.getsockopt` allows: 256 groups, which few users exceed."""
_GROUPS_MAX = 65_536
"""The kernel's own limit of supplementary groups (NGROUPS_MAX)."""


class Credentials(msgspec.Struct, frozen=True):
    """A connecting process: primary group, user and process, in the server's namespaces."""

    gid: int
    uid: int
    pid: int
    began_at_ticks: int | None = None
    """When the process began, in clock ticks since boot; only where the kernel has no pidfds of
    peers. It is read now: if the process has ended, its successor may be taken for it."""


def peer_credentials(sock: socket.socket) -> Credentials:
    """The credentials of the process that connected `sock`. Raises OSError."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(data)
    began_at = None if has_peer_pidfds() else began_at_ticks(pid)
    return Credentials(gid=gid, uid=uid, pid=pid, began_at_ticks=began_at)


def peer_groups(sock: socket.socket) -> frozenset[int]:
    """The supplementary groups of the process that connected `sock`. Raises OSError."""
    groups = array.array("I")
    try:
        data = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GETSOCKOPT_BYTES_MAX)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        data = _getsockopt_large(sock, _SO_PEERGROUPS, _GROUPS_MAX * groups.itemsize)
    groups.frombytes(data)
    return frozenset(groups)


def is_member(sock: socket.socket, own: Credentials, gids: frozenset[int]) -> bool:
    """Whether the process that connected `sock`, with these credentials, is in one of these."""
    return bool(gids) and (own.gid in gids or not gids.isdisjoint(peer_groups(sock)))


def _getsockopt_large(sock: socket.socket, option: int, bytes_max: int) -> bytes:
    """getsockopt(2) with a buffer larger than the standard library's method allows."""
    import ctypes

    buffer = ctypes.create_string_buffer(bytes_max)
    length = ctypes.c_uint32(bytes_max)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, option, buffer, ctypes.byref(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[: length.value]
