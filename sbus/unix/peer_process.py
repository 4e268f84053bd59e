"""The process that connected a socket, as opposed to one that has its number later.

A connection outlives the process that made it when a child inherits it, and a process id is given
away again. Since Linux 6.5 the kernel hands out, by `SO_PEERPIDFD`, a pidfd of the very process
that connected; it becomes readable when that process ends. Where the kernel is older, a process is
known by when it began (`Credentials.began_at_ticks`): one that begins later has another time.

This module decides nothing.
"""

import errno
import os
import select
import socket
from functools import cache
from pathlib import Path

from sbus.unix.errno_sets import PROCESS_GONE

_SO_PEERPIDFD = 77
_STATE = 0
_BEGAN_AT = 19
"""Places in /proc/PID/stat, counted from behind the name (proc_pid_stat(5): 3 and 22)."""
_ENDED_STATES = frozenset({b"Z", b"X", b"x"})


class PeerProcess:
    """The process that connected `sock`, which is borrowed. Opens a descriptor when it is asked to
    `watch`, and closes it in `close`, or once it finds that the process has ended."""

    __slots__ = ("_began_at_ticks", "_ended", "_pid", "_pidfd", "_poll", "_sock")

    def __init__(self, sock: socket.socket, pid: int, began_at_ticks: int | None) -> None:
        """`began_at_ticks`: of `Credentials`; not needed where the kernel has pidfds of peers."""
        self._sock = sock
        self._pid = pid
        self._began_at_ticks = began_at_ticks
        self._pidfd: int | None = None
        self._poll: select.poll | None = None
        self._ended = False

    def watch(self) -> None:
        """Be ready for `has_ended`. Raises OSError when there is no descriptor left."""
        if self._ended or self._pidfd is not None or not has_peer_pidfds():
            return
        pidfd = open_peer_pidfd(self._sock)
        if pidfd is None:
            self._ended = True
            return
        self._pidfd = pidfd
        self._poll = select.poll()
        self._poll.register(pidfd, select.POLLIN)

    def has_ended(self) -> bool:
        """Whether the process has ended, or nobody can tell since it was not watched."""
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

    def close(self) -> None:
        """Watch no more; from here on the process counts as ended."""
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


def open_peer_pidfd(sock: socket.socket) -> int | None:
    """A pidfd, the caller's, of the process that connected `sock`; None when it has ended and the
    kernel kept nothing of it. Raises OSError."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno not in PROCESS_GONE:
            raise
        return None


def began_at_ticks(pid: int) -> int | None:
    """When the living process `pid` began, in clock ticks since boot; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None  # gone, hidden from this user, or no descriptor to look with: not to be trusted
    fields = stat.rpartition(b") ")[2].split()
    return None if fields[_STATE] in _ENDED_STATES else int(fields[_BEGAN_AT])


def program_name(pid: int) -> bytes:
    """What the program of process `pid` calls itself, at most 15 bytes; empty when there is none.

    A program may call itself anything.
    """
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().removesuffix(b"\n")
    except OSError:
        return b""  # gone, hidden from this user, or no descriptor to look with


def peer_program(sock: socket.socket, pid: int) -> bytes:
    """The name of the process `pid` that connected `sock`; empty when that has ended, also where
    another one has its number now, or nobody can tell."""
    if not has_peer_pidfds():
        return program_name(pid)
    try:
        pidfd = open_peer_pidfd(sock)
    except OSError:
        return b""  # no descriptor to look with
    if pidfd is None:
        return b""
    try:
        name = program_name(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return b"" if poll.poll(0) else name
    finally:
        os.close(pidfd)


@cache
def untranslated_ids() -> tuple[int, int]:
    """The group and user id that the kernel gives for those of a foreign user namespace."""
    return _overflow_id("gid"), _overflow_id("uid")


def _overflow_id(which: str) -> int:
    return int(Path(f"/proc/sys/kernel/overflow{which}").read_bytes())
