"""The files of a bus, those of its sockets and its pidfile, which are removed at its end.

The front removes them, or the remover, a process with more rights, which waits for the end of a
pipe that all processes of the bus have. If there is no remover and the front is killed, the fork
server removes them. The lock of the pidfile belongs to the open file, so it lasts while any process
has the file open. A bus that takes the place of another one inherits the files and the lock; only
the process id in the pidfile changes.
"""

import io
import os
import stat
from collections.abc import Iterable

from sbus.errors import AddressError
from sbus.unix.file_lock import is_locked
from sbus.unix.listener import is_bound
from sbus.unix.owned_path import OwnedPath
from sbus.unix.path_lock import path_lock


class BusFiles:
    """As one process has them; `pidfile_fd` is open for writing, `remover_fd` is the pipe."""

    def __init__(
        self,
        paths: Iterable[OwnedPath] = (),
        pidfile_fd: int | None = None,
        remover_fd: int | None = None,
        *,
        is_ours: bool = True,
    ) -> None:
        self.paths = list(paths)
        self.pidfile = None if pidfile_fd is None else io.FileIO(pidfile_fd, "wb")
        self.remover_fd = remover_fd
        self.is_ours = is_ours
        """Whether they are to be removed when this process ends."""

    def take_over(self) -> str:
        """The bus of this process has them from now on. Returns why the pidfile is empty; "" if it
        has the process id."""
        self.is_ours = True
        if self.pidfile is None:
            return ""
        fd, content = self.pidfile.fileno(), b"%d\n" % os.getpid()
        try:
            os.pwrite(fd, content, 0)  # over the other id, which works on a full disk
            os.truncate(fd, len(content))
        except OSError as error:
            os.truncate(fd, 0)
            return os.strerror(error.errno or 0)
        return ""

    def hand_over(self) -> None:
        """Another bus has them from now on."""
        self.is_ours = False

    def take_back(self) -> None:
        """The other bus has failed."""
        self.is_ours = True

    def leave_to_remover(self) -> None:
        """Have the remover remove them, once all other processes of the bus have ended."""
        self._close_pipe()
        self.is_ours = False

    def remove(self) -> None:
        """Remove them, if that is to be done and the remover does not do it. Raises
        AddressError."""
        if self.is_ours and self.remover_fd is None:
            while self.paths:
                file = self.paths.pop(0)
                try:
                    file.remove()
                except OSError as error:
                    raise AddressError(f"cannot remove {file.path}: {error.strerror}") from error

    def remove_left(self) -> list[str]:
        """Remove those that no process uses any more, if the remover does not do it; those that
        cannot be removed, and why. Another bus may have them by now, or its own at their paths."""
        left = []
        for file in self.paths if self.remover_fd is None else []:
            try:
                if file.is_ours():
                    with path_lock(file.path):
                        if not _is_in_use(file.path):
                            file.remove()
            except FileNotFoundError:
                continue
            except OSError as error:
                left.append(f"{file.path} ({error.strerror})")
        return left

    def close(self) -> None:
        """Close the descriptors."""
        if self.pidfile is not None:
            self.pidfile.close()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.remover_fd is not None:
            os.close(self.remover_fd)
            self.remover_fd = None


def _is_in_use(path: str) -> bool:
    """Whether a process is bound to this socket, or has locked this pidfile. Raises OSError."""
    if stat.S_ISSOCK(os.lstat(path).st_mode):
        return is_bound(path)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return is_locked(fd)
    finally:
        os.close(fd)
