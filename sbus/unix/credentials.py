"""Who is at the other end of a unix socket, by the kernel's word.

`SO_PEERCRED` and `SO_PEERGROUPS` tell what the peer was when it called connect(2): they cannot be
forged and do not change. This module decides nothing.
"""

import array
import socket
import struct

import msgspec

_SO_PEERGROUPS = 59
_UCRED = struct.Struct("iII")
_GROUPS_MAX = 65_536
"""The kernel's own limit of supplementary groups (NGROUPS_MAX)."""


class Credentials(msgspec.Struct, frozen=True):
    """A connecting process: primary group, user and process, in the server's namespaces."""

    gid: int
    uid: int
    pid: int


def peer_credentials(sock: socket.socket) -> Credentials:
    """The credentials of the process that connected `sock`. Raises OSError."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(data)
    return Credentials(gid=gid, uid=uid, pid=pid)


def peer_groups(sock: socket.socket) -> frozenset[int]:
    """The supplementary groups of the process that connected `sock`. Raises OSError."""
    groups = array.array("I")
    data = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_MAX * groups.itemsize)
    groups.frombytes(data)
    return frozenset(groups)
