"""The process that connected a socket, as opposed to a later process with the same id.

A connection outlives the process that made it when a child inherits it, and process ids are used
again. Since Linux 6.5, `SO_PEERPIDFD` returns a pidfd of the process that connected, which becomes
readable when that process ends. On an older kernel a process is identified by the time when it
began (`Credentials.began_at_ticks`), which is different for a later process.
"""

import errno
import os
import re
import select
import socket
from functools import cache
from pathlib import Path

from sbus.unix.errno_sets import PROCESS_GONE

_SO_PEERPIDFD = 77
_STATE = 0
_BEGAN_AT = 19
"""Indices in /proc/PID/stat after the name; fields 3 and 22 of proc_pid_stat(5)."""
_SAVED_IDS = re.compile(rb"^[UG]id:\t\d+\t\d+\t(\d+)", re.MULTILINE)
"""In /proc/PID/status, which escapes newlines in the name of the program."""
_ENDED_STATES = frozenset({b"Z", b"X", b"x"})


class PeerProcess:
    """The process that connected `sock`, which is borrowed. `watch` opens a descriptor. `close`
    closes it, or `has_ended` once the process has ended."""

    __slots__ = ("_began_at_ticks", "_ended", "_pid", "_pidfd", "_poll", "_sock")

    def __init__(self, sock: socket.socket, pid: int, began_at_ticks: int | None) -> None:
        """`began_at_ticks` is not needed where the kernel has pidfds of peers."""
        self._sock = sock
        self._pid = pid
        self._began_at_ticks = began_at_ticks
        self._pidfd: int | None = None
        self._poll: select.poll | None = None
        self._ended = False

    def watch(self) -> None:
        """Prepare for `has_ended`. Raises OSError when there is no descriptor left."""
        if self._ended or self._pidfd is not None or not has_peer_pidfds():
            return
        try:
            self._pidfd = self._sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno not in PROCESS_GONE:
                raise
            self._ended = True
            return
        self._poll = select.poll()
        self._poll.register(self._pidfd, select.POLLIN)

    def has_ended(self) -> bool:
        """Whether the process has ended; also True when it was not watched."""
        if self._ended:
            return True
        if self._poll is not None:
            ended = bool(self._poll.poll(0))
        elif self._began_at_ticks is not None:
            ended = began_at_ticks(self._pid) != self._began_at_ticks
        else:
            return True
        if ended:
            self.close()
        return ended

    def saved_ids(self) -> tuple[int, int] | None:
        """Its saved group and user id, which an executed program changes if it is set-group-id or
        set-user-id; None when they cannot be found out. They are a later process's if this one has
        ended since."""
        try:
            status = Path(f"/proc/{self._pid}/status").read_bytes()
        except OSError:
            return None  # ended, hidden from this user, or no descriptor left
        uid, gid = (int(saved) for saved in _SAVED_IDS.findall(status))
        return gid, uid

    def close(self) -> None:
        """Stop watching; from now on the process counts as ended."""
        self._ended = True
        self._poll = None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


@cache
def has_peer_pidfds() -> bool:
    """Whether this kernel has `SO_PEERPIDFD`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
            return False
    return True


def began_at_ticks(pid: int) -> int | None:
    """When the living process `pid` began, in clock ticks since boot; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None  # ended, hidden from this user, or no descriptor left
    fields = stat.rpartition(b") ")[2].split()
    return None if fields[_STATE] in _ENDED_STATES else int(fields[_BEGAN_AT])


def program_name(pid: int) -> bytes:
    """The name of the program that process `pid` runs, at most 15 bytes, or b"". A program can
    choose any name."""
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().removesuffix(b"\n")
    except OSError:
        return b""  # ended, hidden from this user, or no descriptor left


def peer_program(sock: socket.socket, pid: int) -> bytes:
    """The name of the program of the process `pid` that connected `sock`, or b"": when it has
    ended, even if another process has its id now, and when that cannot be found out."""
    if not has_peer_pidfds():
        return program_name(pid)
    process = PeerProcess(sock, pid, None)
    try:
        process.watch()
    except OSError:
        return b""  # no descriptor left
    name = program_name(pid)
    has_ended = process.has_ended()
    process.close()
    return b"" if has_ended else name
