"""Errors of system calls that have one meaning for the caller, as named sets of errno values.

A caller survives the sets that it names; any other error is a bug and escapes.
"""

import errno
from typing import Final

OUT_OF_RESOURCES: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM}
)
"""This process or the host has no descriptor or no memory left, or too many descriptors of this
user are on their way; that may pass."""

ACCEPT_FAILED: Final = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPERM, errno.EPROTO})
"""accept(2): this one connection failed; the listening socket is as good as before."""

PEER_GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN})
"""On a connected socket: nobody is at the other end any more."""

SOCKET_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})
"""send(2) without blocking: the socket's buffer or the kernel has no room for the packet now."""

PROCESS_GONE: Final = frozenset({errno.ESRCH, errno.EINVAL, errno.ENODATA})
"""SO_PEERPIDFD: the process has ended, or there never was one."""

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""write(2): the disk, or this user's or this file's share of it, is full."""
