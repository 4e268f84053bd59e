"""Messages of a durable channel that NATS has not acknowledged yet, in a file.

    file       records: length and checksum of 4 bytes each, then the record
    state      where the records that are not acknowledged begin and end, and how to go on

What was appended survives the death of the bridge at any instruction, but not a power failure, as
nothing is synced to the disk; the checksums find what that has left. When most is acknowledged, the
rest moves to the beginning.
"""

import errno
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from sbus.unix.state_file import StateFile

_HEAD: Final = struct.Struct("<II")
_READ_BYTES: Final = 1024 * 1024
BRIDGES_MAX: Final = 4_096


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """How far the reader of the bus has come."""

    epoch: str = ""
    last: int = 0
    """The number of the last message."""
    cookie: int = 0
    """Of the socket that it reads."""
    bridges: list[int] = []
    """The bridges on the bus at that place, at most `BRIDGES_MAX`."""


class _State(msgspec.Struct, frozen=True, array_like=True):
    start: int = 0
    end: int = 0
    reached: Reached = Reached()
    last_sequence: int = 0


class Spool:
    """Of one channel. Opening it drops what follows a record that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = StateFile(path.with_suffix(".state"), _State())
        state = self._file.state
        end = self._end_of_records()
        if end != state.end:
            self._file.write(_State(state.start, end, last_sequence=state.last_sequence))

    @property
    def last_sequence(self) -> int:
        """Up to this one, the stream has everything that was released; 0 if that is not known."""
        return self._file.state.last_sequence

    def note_last_sequence(self, sequence: int) -> None:
        self._file.write(msgspec.structs.replace(self._file.state, last_sequence=sequence))

    @property
    def reached(self) -> Reached:
        return self._file.state.reached

    @property
    def waiting_bytes(self) -> int:
        return self._file.state.end - self._file.state.start

    def append(self, records: Iterable[bytes], reached: Reached) -> None:
        """Add these, and how far the reader has come with them, at one instruction. Raises OSError;
        then nothing was appended."""
        end = self._file.state.end
        data = b"".join(_HEAD.pack(len(it), zlib.crc32(it)) + it for it in records)
        if data and os.pwrite(self._fd, data, end) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        old = self._file.state
        state = _State(old.start, end + len(data), reached, old.last_sequence)
        self._file.write(state, flag=True)

    @property
    def is_taking(self) -> bool:
        """Whether what was appended last may still be in the socket."""
        return self._file.flag

    def note_taken(self) -> None:
        """What was appended is no longer in the socket."""
        self._file.clear_flag()

    def first(self, count: int) -> tuple[list[bytes], int]:
        """The first records that are not acknowledged, and where they end."""
        return self._records_at(self._file.state.start, count)

    def release(self, end: int, sequence: int = 0) -> None:
        """All records before this are acknowledged, the last one with this sequence, if any."""
        old = self._file.state
        last_sequence = max(sequence, old.last_sequence)
        state = msgspec.structs.replace(old, start=end, last_sequence=last_sequence)
        self._file.write(state)  # now nothing counts that the rest will overwrite
        rest = state.end - end
        if rest and end < max(rest, _READ_BYTES):
            return
        at = 0
        while at < rest:
            at += os.copy_file_range(self._fd, self._fd, rest - at, end + at, at)
        self._file.write(msgspec.structs.replace(state, start=0, end=rest))
        os.ftruncate(self._fd, rest)

    def close(self) -> None:
        os.close(self._fd)

    def _end_of_records(self) -> int:
        end = self._file.state.start
        while True:
            records, after = self._records_at(end, 1_000)
            if not records:
                return end
            end = after

    def _records_at(self, start: int, count: int) -> tuple[list[bytes], int]:
        data = os.pread(self._fd, max(0, min(_READ_BYTES, self._file.state.end - start)), start)
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
