"""The sockets of a bus that others connect to or have connected to: all of them are non-blocking.

The bus does not rely on the flag. It belongs to the open file, which all processes of the bus
share, and a process that clears it is wrong about who else has the file.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.support.ending_process import unless_it_ends

_BOUND_SEQPACKET = re.compile(r"^[0-9a-f]+: \S+ \S+ \S+ 0005 \S+ +(\d+) \S", re.MULTILINE)
"""Of an accepted connection, /proc/net/unix has the address that the listening socket is bound to;
sockets between the processes of a bus have none."""


def check_sockets(pids: Iterable[int]) -> None:
    """Assert that no such socket of these processes is blocking. One that has been accepted in this
    very moment is looked at again."""
    blocking = set(_blocking(pids))
    blocking &= set(_blocking(pid for pid, _ in blocking))
    assert not blocking, f"blocking sockets of a bus, by process and inode: {blocking}"


def sockets(pid: int) -> Iterator[tuple[int, int]]:
    """The descriptors of a process for such sockets, and the inodes of these."""
    with unless_it_ends(pid):
        inodes = set(
            _BOUND_SEQPACKET.findall(Path(f"/proc/{pid}/net/unix").read_text(errors="replace"))
        )
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                inode = os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[")[:-1]
                if inode in inodes:
                    yield int(fd), int(inode)


def _blocking(pids: Iterable[int]) -> Iterator[tuple[int, int]]:
    for pid in pids:
        for fd, inode in sockets(pid):
            with unless_it_ends(pid):
                info = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
                flags = int(info.partition("flags:")[2].split()[0], 8)
                if not flags & os.O_NONBLOCK:
                    yield pid, inode
