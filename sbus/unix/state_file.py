"""A record in a file, which is replaced by one store to memory: a process that is killed leaves the
old one or the new one.

    0    which of two slots counts, and a flag (2)
    8…   two slots: length of 4 bytes, then the record
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from sbus.errors import ConfigurationError

T = TypeVar("T")

_LENGTH: Final = struct.Struct("<I")
_FIRST_AT: Final = 8
_SLOT, _FLAG = 1, 2
_encode = msgspec.msgpack.Encoder().encode


class StateFile(Generic[T]):
    """`state` is what the file has, or `first` if that is nothing. Raises ConfigurationError for a
    file of something else."""

    def __init__(self, path: Path, first: T, bytes_max: int = 65_536) -> None:
        self._slot_bytes = bytes_max + _LENGTH.size
        self._map = map_file(path, _FIRST_AT + 2 * self._slot_bytes)
        self.state = first
        at = self._slot_at(self._map[0] & _SLOT)
        (length,) = _LENGTH.unpack_from(self._map, at)
        data = self._map[at + _LENGTH.size : at + _LENGTH.size + length]
        try:
            if self._map[0] > _SLOT | _FLAG:
                raise msgspec.DecodeError
            if data:
                self.state = msgspec.msgpack.decode(data, type=type(first))
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{path} is damaged, or no file of this program") from error

    @property
    def flag(self) -> bool:
        return bool(self._map[0] & _FLAG)

    def clear_flag(self) -> None:
        self._map[0] &= _SLOT

    def write(self, state: T, *, flag: bool | None = None) -> None:
        """Replace the record, and the flag, unless that is None, at one instruction."""
        slot = 1 - (self._map[0] & _SLOT)
        data = _encode(state)
        assert len(data) <= self._slot_bytes - _LENGTH.size
        at = self._slot_at(slot)
        self._map[at : at + _LENGTH.size + len(data)] = _LENGTH.pack(len(data)) + data
        self._map[0] = slot | (_FLAG if (self.flag if flag is None else flag) else 0)
        self.state = state

    def _slot_at(self, slot: int) -> int:
        return _FIRST_AT + slot * self._slot_bytes


def map_file(path: Path, size: int) -> mmap.mmap:
    """A file of this size in memory. What is stored there outlives the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)  # a store to memory for which the disk has no room is fatal
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
