"""The closer: the process that drops the last references to files that clients attached to packets.

The process that drops the last reference to a file closes it, and a client decides how long that
takes: a socket that lingers, a file of a FUSE server that never answers. Some of these waits are
ended by no signal. So that nobody who serves anybody waits like that, the closer has a copy of each
connection on which descriptors may come, and is the last to close its own.

It does nothing else, holds nothing that another process waits for, and is given up when it takes
too long: see `closer`.
"""

import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

from sbus.unix.fd_passing import DescriptorsLost, receive_owning_fds
from sbus.unix.readiness import is_readable_within
from sbus.unix.standard_streams import ERRORS

REQUEST = struct.Struct("=Q")
"""The number of a socket: with a descriptor, to keep this copy of it; without, to close that."""
END = 0
"""In place of a number: all other processes of the bus have closed all of their copies."""
DONE = b"."
"""What the closer answers to each request when it is done."""


def close_as_told(link_fd: int, process_ids: Iterable[int]) -> None:
    """Keep and close copies of sockets, as told on the link, until the front says that this is the
    end, or until these processes have ended. Those that are left are closed by the end of this
    process, which must follow."""
    _close_all_but(link_fd)
    others = _pidfds_of(process_ids)
    if not _obey(socket.socket(fileno=link_fd)):
        for pidfd in others:
            is_readable_within(pidfd, None)


def _obey(link: socket.socket) -> bool:
    """Serve until the end; whether it was announced."""
    copies: dict[int, int] = {}
    while True:
        try:
            data, fds = receive_owning_fds(link, REQUEST.size)
        except DescriptorsLost:
            return True  # as many files as it may have: a successor begins with fewer
        if not data:
            return False
        (number,) = REQUEST.unpack(data)
        if number == END:
            return True
        if fds:
            copies[number] = fds[0]
        else:
            os.close(copies.pop(number))
        with suppress(BrokenPipeError, ConnectionResetError):
            link.send(DONE)


def _close_all_but(link_fd: int) -> None:
    """Close what this process has from its parent: others may wait for the end of it."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > ERRORS and fd != link_fd:
            with suppress(OSError):  # the directory that was listed is closed by now
                os.close(fd)


def _pidfds_of(process_ids: Iterable[int]) -> list[int]:
    pidfds = []
    for pid in process_ids:
        with suppress(ProcessLookupError):
            pidfds.append(os.pidfd_open(pid))
    return pidfds
