"""File descriptors across a unix socket.

`socket.recv_fds` loses its flags and `socket.send_fds` is fine but lonely; this pair keeps received
descriptors close-on-exec from birth and says when the kernel dropped some. The names tell who
closes: sending borrows descriptors, receiving makes the caller their owner.
"""

import array
import os
import socket

_SO_PASSRIGHTS = 83
FDS_MAX = 4
"""No message inside of the bus carries more."""


class DescriptorsLost(Exception):
    """A message came without all of its descriptors: this process has none left to give them."""

    def __init__(self, data: bytes) -> None:
        super().__init__("descriptors were dropped on the way: too many open files")
        self.data = data


def refuse_descriptors(listener: socket.socket) -> None:
    """Make the kernel refuse (EPERM) packets with descriptors to sockets accepted from now on.

    Raises OSError (ENOPROTOOPT) on a kernel before Linux 6.16.
    """
    listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def send_borrowing_fds(sock: socket.socket, data: bytes, fds: list[int]) -> None:
    """Send one packet with copies of `fds`. Raises OSError (BlockingIOError when full)."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary)


def receive_owning_fds(sock: socket.socket, bytes_max: int) -> tuple[bytes, list[int]]:
    """Receive one packet and its descriptors, which the caller closes.

    b"" when the other end is closed, whether or not it had read everything. Raises OSError, and
    DescriptorsLost with the packet when descriptors were dropped.
    """
    space = socket.CMSG_SPACE(FDS_MAX * array.array("i").itemsize)
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
