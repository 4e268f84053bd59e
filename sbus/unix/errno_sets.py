"""Errors of system calls that have one meaning for the caller, as named sets of errno values.

A caller survives the sets that it names; any other error is a bug and escapes.
"""

from errno import (
    EAGAIN,
    ECONNABORTED,
    ECONNREFUSED,
    ECONNRESET,
    EDQUOT,
    EFBIG,
    EINTR,
    EINVAL,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENODATA,
    ENOMEM,
    ENOSPC,
    ENOTCONN,
    EPERM,
    EPIPE,
    EPROTO,
    ESRCH,
)
from typing import Final

OUT_OF_RESOURCES: Final = frozenset({EMFILE, ENFILE, ENOBUFS, ENOMEM})
"""This process or the host has no descriptor or no memory left; that may pass."""

ACCEPT_FAILED: Final = frozenset({ECONNABORTED, EINTR, EPERM, EPROTO})
"""accept(2): this one connection failed; the listening socket is as good as before."""

PEER_GONE: Final = frozenset({EPIPE, ECONNRESET, ECONNREFUSED, ENOTCONN})
"""On a connected socket: nobody is at the other end any more."""

SOCKET_FULL: Final = frozenset({EAGAIN, ENOBUFS, ENOMEM})
"""send(2) without blocking: the socket's buffer or the kernel has no room for the packet now."""

PROCESS_GONE: Final = frozenset({ESRCH, EINVAL, ENODATA})
"""SO_PEERPIDFD: the process has ended, or there never was one."""

DISK_FULL: Final = frozenset({ENOSPC, EDQUOT, EFBIG})
"""write(2): the disk, or this user's or this file's share of it, is full."""
