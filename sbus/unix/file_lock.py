"""Locks of an open file, not of a process: every process that inherits the file holds the lock.

Source: `F_OFD_SETLK` in fcntl(2).
"""

import fcntl
import os
import struct
from typing import Final

_WRITE_LOCK: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""A struct flock for the whole file."""


def lock_file(fd: int) -> None:
    """Lock a file that is open for writing, until all processes have closed this open file. Raises
    OSError, BlockingIOError if it is locked through another one."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WRITE_LOCK)


def is_locked(fd: int) -> bool:
    """Whether a file that is open for reading was locked through another open file. Raises
    OSError."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
