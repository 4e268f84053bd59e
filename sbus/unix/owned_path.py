"""A file that this process made and removes again, unless another process has replaced it.

Another process may put its own file at the same path, as `sbusd -r` does. So a path is remembered
with the device and inode of its file. An inode number is used again once its file is gone: keep the
file open until it is removed.
"""

import os
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class OwnedPath:
    """An absolute path, and the file that it led to when it was claimed."""

    path: str
    device: int
    inode: int

    @classmethod
    def claim(cls, path: str) -> Self:
        """Claim the file that is at `path` now; OSError when there is none."""
        found = os.lstat(path)
        return cls(os.path.abspath(path), found.st_dev, found.st_ino)

    def is_ours(self) -> bool:
        """Whether the path still leads to the file that was claimed."""
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def is_at(self, fd: int) -> bool:
        """Whether this descriptor refers to the file that was claimed."""
        found = os.fstat(fd)
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def remove(self) -> None:
        """Unlink the file if it is still the claimed one; OSError when that fails."""
        if self.is_ours():
            os.unlink(self.path)
