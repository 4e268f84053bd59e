"""The pidfile of a bus in the background, which is also its lock.

A write lock on the file lasts as long as the front has it open, or the front of a bus that took its
place. A file without that lock is stale, whichever process id it has, because the kernel gives a
process's number to another one later. Locks of users who may only read the file do not count.
"""

import os
import re
import stat

from sbus.cli.terminal.error_output import report_error
from sbus.errors import ConfigurationError
from sbus.unix.file_lock import is_locked, lock_file
from sbus.unix.owned_path import OwnedPath
from sbus.unix.path_lock import path_lock

_CONTENT = re.compile(rb"([0-9]{1,10}\n)?")
_CONTENT_BYTES_MAX = 11


class Pidfile:
    """A file that holds the process id of this process, and is locked until `fd` is closed by all
    processes that have it."""

    def __init__(self, path: str) -> None:
        """Make the file, in the place of a stale one if there is one. Raises ConfigurationError."""
        try:
            with path_lock(path):
                _remove_stale(path)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self.fd = os.open(path, flags, 0o600)
                self.owned_path = OwnedPath.claim(path)
                self._lock_and_write()
        except OSError as error:
            advice = (
                "; name other places with -a and -p" if isinstance(error, PermissionError) else ""
            )
            raise ConfigurationError(
                f"cannot make pidfile {path}: {error.strerror}{advice}"
            ) from error

    def _lock_and_write(self) -> None:
        try:
            lock_file(self.fd)
            os.write(self.fd, b"%d\n" % os.getpid())
            os.fchmod(self.fd, 0o644)  # not before: who can read it could lock it
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the file, unless another has taken its place."""
        self.owned_path.remove()
        os.close(self.fd)


def _remove_stale(path: str) -> None:
    """Remove a stale pidfile. Raises ConfigurationError for any other file, and OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        content = os.read(fd, _CONTENT_BYTES_MAX + 1) if is_file else b""
        if not (is_file and _CONTENT.fullmatch(content)):
            raise ConfigurationError(f"{path} exists and is not a pidfile")
        pid = content.decode().strip() or "?"
        if is_locked(fd):
            raise ConfigurationError(
                f"pidfile {path} is in use by process {pid}: end that, or name another file with -p"
            )
        os.unlink(path)
    finally:
        os.close(fd)
    report_error(f"replaced pidfile {path}, which process {pid} left behind")
