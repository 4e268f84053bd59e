"""A file that this process made and removes again, unless it has become somebody else's.

Between making a file and removing it another process may have put its own in the same place, as
`sbusd -r` does. A path is therefore remembered with the device and inode it stood for. An inode
number is used again once its file is gone, so whoever owns a path keeps the file open until it has
removed it. This module does not know what kind of file it is, nor how it was made.
"""

import os
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class OwnedPath:
    """An absolute path, and the file that was there when it was claimed."""

    path: str
    device: int
    inode: int

    @classmethod
    def claim(cls, path: str) -> Self:
        """Own the file that is at `path` now; OSError when there is none."""
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
        """Whether this descriptor is one of the file that was claimed."""
        found = os.fstat(fd)
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def remove(self) -> None:
        """Unlink the file if it is still ours; OSError when that fails."""
        if self.is_ours():
            os.unlink(self.path)
