"""Passing file descriptors over a unix socket.

Unlike with `socket.recv_fds`, received descriptors are close-on-exec from the start, and dropped
descriptors are an error. The names say who closes: sending borrows descriptors, receiving makes the
caller their owner.
"""

import array
import errno
import os
import socket

from sbus.unix.errno_sets import OUT_OF_RESOURCES
from sbus.unix.readiness import is_readable_within

_SO_PASSRIGHTS = 83
_LOOK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
FDS_MAX = 4
"""Few messages between the processes of a bus carry more."""


class DescriptorsLost(Exception):
    """A message lost descriptors: this process has too many open files."""

    def __init__(self, data: bytes) -> None:
        super().__init__("descriptors were dropped on the way: too many open files")
        self.data = data


def dup_socket(sock: socket.socket) -> socket.socket:
    """A copy, which the caller closes. `socket.dup` would also set or clear O_NONBLOCK, for all
    copies in all processes."""
    return socket.socket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))


def refuse_descriptors(listener: socket.socket, *, does_refuse: bool = True) -> None:
    """Make the kernel refuse (EPERM) packets with descriptors to sockets that connect from now on,
    or no longer. A kernel before Linux 6.16 cannot do that."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, not does_refuse)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise


def refuse_unless_unread(sock: socket.socket) -> bool:
    """Make the kernel refuse descriptors from now on; False, and nothing has changed, if packets of
    before are unread, or the kernel cannot."""
    refuse_descriptors(sock)
    if is_readable_within(sock, 0):
        refuse_descriptors(sock, does_refuse=False)
    return not may_carry_descriptors(sock)


def may_carry_descriptors(sock: socket.socket) -> bool:
    """Whether packets for this socket may have descriptors attached."""
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS))
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return True


def has_descriptors(sock: socket.socket) -> bool:
    """Whether the next packet has descriptors attached. Never waits; raises OSError as `recv` does.

    Looking at a packet never drops the last reference to a file: the packet keeps its own."""
    return bool(sock.recvmsg(0, 0, _LOOK)[2] & socket.MSG_CTRUNC)


def send_borrowing_fds(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send one packet with copies of `fds`. Raises OSError, of which BlockingIOError says that the
    socket, or the kernel, has no room for it now."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([data], ancillary)
    except OSError as error:
        if error.errno not in OUT_OF_RESOURCES:
            raise
        raise BlockingIOError(error.errno, error.strerror) from error


def receive_owning_fds(
    sock: socket.socket, bytes_max: int, fds_max: int = FDS_MAX
) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors, which the caller closes. b"" when the other end is
    closed. Raises OSError, and DescriptorsLost with the packet when descriptors were dropped."""
    space = socket.CMSG_SPACE(fds_max * array.array("i").itemsize)
    try:
        data, ancillary, flags, _ = sock.recvmsg(bytes_max, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return b"", []
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise DescriptorsLost(data)
    return data, list(fds)
