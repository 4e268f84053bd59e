"""Messages of a durable channel that NATS has not acknowledged yet, in a file.

    file       records: length and checksum of 4 bytes each, then the record
    position   8 bytes, mapped into memory: where the first record that is not acknowledged begins

What was appended survives the death of the bridge at any instruction, but not a power failure, as
nothing is synced to the disk. When most is acknowledged, the rest moves to the beginning: the
position last but one, then the size, so that a death in between has records sent twice, and none
forgotten.
"""

import errno
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_HEAD: Final = struct.Struct("<II")
_POSITION: Final = struct.Struct("<Q")
_READ_BYTES: Final = 1024 * 1024


class Spool:
    """Of one channel; opening it drops a record that was not written to its end."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._position = map_file(path.with_suffix(".position"), _POSITION.size)
        self._size = os.fstat(self._fd).st_size
        if self.position > self._size:  # it was emptied, and the machine then went down
            self._move(0)
        self._size = self._end_of_records()
        os.ftruncate(self._fd, self._size)

    @property
    def position(self) -> int:
        start: int = _POSITION.unpack_from(self._position)[0]
        return start

    @property
    def waiting_bytes(self) -> int:
        return self._size - self.position

    def append(self, records: Iterable[bytes]) -> None:
        """Raises OSError; then nothing was appended."""
        data = b"".join(_HEAD.pack(len(it), zlib.crc32(it)) + it for it in records)
        if os.pwrite(self._fd, data, self._size) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(data)

    def first(self, count: int) -> tuple[list[bytes], int]:
        """The first records that are not acknowledged, and where they end."""
        return self._records_at(self.position, count)

    def release(self, end: int) -> None:
        """All records before this are acknowledged."""
        rest = self._size - end
        if rest and end < max(rest, _READ_BYTES):
            self._move(end)
            return
        at = 0
        while at < rest:
            at += os.copy_file_range(self._fd, self._fd, rest - at, end + at, at)
        self._move(0)
        os.ftruncate(self._fd, rest)
        self._size = rest

    def close(self) -> None:
        os.close(self._fd)
        self._position.close()

    def _move(self, position: int) -> None:
        _POSITION.pack_into(self._position, 0, position)

    def _end_of_records(self) -> int:
        end = self.position
        while True:
            records, after = self._records_at(end, 1_000)
            if not records:
                return end
            end = after

    def _records_at(self, start: int, count: int) -> tuple[list[bytes], int]:
        data = os.pread(self._fd, _READ_BYTES, start)
        records: list[bytes] = []
        at = 0
        while len(records) < count and at + _HEAD.size <= len(data):
            length, checksum = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + length
            if end > len(data):
                break
            record = data[at + _HEAD.size : end]
            if zlib.crc32(record) != checksum:
                break
            records.append(record)
            at = end
        return records, start + at


def map_file(path: Path, size: int) -> mmap.mmap:
    """A file of this size in memory. What is stored there outlives the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, 0, size)  # a store in a hole, on a full disk, ends the process
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
