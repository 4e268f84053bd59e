"""Actions as another user, most of which need root, and programs with less than root's rights.

Other users cannot enter pytest's temporary directories, nor perhaps run this interpreter; so a
forked child changes its ids and goes on from where this process is.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

STRANGER = 65_533
"""A user and group id that no host gives to anybody; it need not have a name."""

UNPRIVILEGED = STRANGER if os.geteuid() == 0 else os.geteuid()
"""A user who is not root, and as whom this process can act."""

WITHOUT_FILE_PRIVILEGES = (
    ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
)
"""Before a command: the modes of files apply to it, even if its user is root."""


def become(
    uid: int = STRANGER, gid: int = STRANGER, groups: Sequence[int] = ()
) -> Callable[[], None]:
    """A function that makes the calling process one of this user's, for good."""

    def change() -> None:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

    return change


def as_user(
    action: Callable[[], bool],
    *,
    uid: int = STRANGER,
    gid: int = STRANGER,
    groups: Sequence[int] = (),
) -> bool:
    """What `action` returns in a process of this user; an error in it is an AssertionError here."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            become(uid, gid, groups)()
            status = 0 if action() else 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), f"the action of user {uid} failed"
    return status == 0


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    """Servers that this process connects to see a user and a group of this number, and it may open
    what that user may open.

    For everything that it has opened before, the process remains root's.
    """
    if uid == os.geteuid():
        yield
        return
    os.setegid(uid)
    try:
        os.seteuid(uid)
        try:
            yield
        finally:
            os.seteuid(0)
    finally:
        os.setegid(0)


@contextmanager
def directory_for_everybody() -> Iterator[Path]:
    """A temporary directory that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="sbus-test-", dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(stat.S_IRWXU | stat.S_IXGRP | stat.S_IXOTH)
        yield directory
