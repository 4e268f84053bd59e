"""A file of records about clients, in memory: a memfd that one process writes and others map.

It begins with the version of the records. Each record has the number of its client and its size in
front, so a process that only hands records on need not decode them.
"""

import mmap
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sbus.broker.ipc.client_record import VERSION, check_version
from sbus.unix.memfd import make_memfd, write_all

_VERSION = struct.Struct("<HH")
_FRAME = struct.Struct("<QQ")  # client, size of its record
_WRITTEN_BYTES = 1 << 20


class Place(NamedTuple):
    """Where in a file the record of a client is."""

    at: int
    size: int


class RecordsFile:
    """The mapped records of a file; `fd` is borrowed. Raises UnknownVersion."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        major, minor = _VERSION.unpack_from(self._map)
        check_version((major, minor))

    def places(self) -> Iterator[tuple[int, Place]]:
        """The clients, each with the place of its record."""
        at = _VERSION.size
        while at < len(self._map):
            client, size = _FRAME.unpack_from(self._map, at)
            yield client, Place(at + _FRAME.size, size)
            at += _FRAME.size + size

    def __getitem__(self, place: Place) -> bytes:
        return self._map[place.at : place.at + place.size]


def make_records_file() -> int:
    """A new, empty file of records; the caller closes it. Raises OSError."""
    return make_memfd("sbus-records", _VERSION.pack(*VERSION))


def append_records(memfd: int, records: Iterable[tuple[int, bytes]]) -> None:
    """Write records, each with the number of its client. Raises OSError."""
    chunk = bytearray()
    for client, record in records:
        chunk += _FRAME.pack(client, len(record))
        chunk += record
        if len(chunk) >= _WRITTEN_BYTES:
            write_all(memfd, chunk)
            chunk = bytearray()
    write_all(memfd, chunk)
