"""A lock on a path, for removing a file there that another process may replace meanwhile.

Between a check of a file and its removal, another process may replace the file, and the first
process would remove the new one. So each process of sbus that removes a file of another process
holds this lock: an flock on a file beside it, which exists only meanwhile. Only its owner and root
can open that file, so no other user can hold the lock.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sbus.unix.owned_path import OwnedPath

_SUFFIX = ".sbusd-lock"
_WAIT_SECONDS_MAX = 2.0
"""A process holds the lock for some system calls, unless it is stopped there."""
_POLL_SECONDS = 0.005


@contextmanager
def path_lock(path: str) -> Iterator[None]:
    """Hold the lock of `path`. Raises OSError, TimeoutError among them."""
    fd, lock_file = _lock(f"{path}{_SUFFIX}")
    try:
        yield
    finally:
        lock_file.remove()
        os.close(fd)


def _lock(path: str) -> tuple[int, OwnedPath]:
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while (locked := _try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"another process holds {path}")
        time.sleep(_POLL_SECONDS)
    return locked


def _try_lock(path: str) -> tuple[int, OwnedPath] | None:
    """None if another process holds the lock, or has just removed its file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock_file = OwnedPath.claim(path)
        if lock_file.is_at(fd):
            return fd, lock_file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None
