"""Files in memory that one process writes and others read."""

import os


def make_memfd(name: str, content: bytes) -> int:
    """A new memfd with this content; the caller closes it. Raises OSError."""
    memfd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        write_all(memfd, content)
    except BaseException:
        os.close(memfd)
        raise
    return memfd


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write all of it, in several pieces if need be. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
