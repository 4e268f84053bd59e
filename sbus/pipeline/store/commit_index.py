"""The index beside a segment file: which of its batches are committed.

A segment file is one Arrow IPC stream to which record batches are appended. Each batch has an index
entry of 32 bytes, which is written once the batch is on disk:

    end offset · end byte · newest timestamp · check        each a little-endian unsigned 64 bits

`check` is the CRC-32 of the three words before it and of the file's bytes since the end byte of the
previous entry; for the first entry, since byte 0, so it covers the schema. A crash can only tear
the last batch or the last entry. So everything up to the last entry with a valid check is
committed, and recovery cuts off the rest.

Pure: it works on bytes that it is given.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

ENTRY_BYTES = 32
BATCH_BYTES_MAX = 1 << 30
"""No batch is that large, so an entry that says so is torn."""
_ENTRY = struct.Struct("<QQQQ")
_WORDS = struct.Struct("<QQQ")

Bytes = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """Where a batch ends; `end_offset` and `end_byte` are exclusive."""

    end_offset: int
    end_byte: int
    newest_us: int
    check: int

    def pack(self) -> bytes:
        return _ENTRY.pack(*self)


def seal(end_offset: int, end_byte: int, newest_us: int, batch: Bytes) -> Entry:
    """The entry of a batch of these bytes."""
    words = _WORDS.pack(end_offset, end_byte, newest_us)
    return Entry(end_offset, end_byte, newest_us, zlib.crc32(batch, zlib.crc32(words)))


def parse(index: Bytes) -> list[Entry]:
    """Every whole entry, valid or not."""
    whole = len(index) - len(index) % ENTRY_BYTES
    return [Entry._make(words) for words in _ENTRY.iter_unpack(index[:whole])]


def is_sound(entry: Entry, batch: Bytes) -> bool:
    """Whether the entry was written for these bytes."""
    return entry == seal(entry.end_offset, entry.end_byte, entry.newest_us, batch)


def committed(index: Bytes, read: Callable[[int, int], Bytes]) -> list[Entry]:
    """The entries of committed batches. `read(start, end)` returns bytes of the segment file, fewer
    where it ends before; usually only the last batch is read."""
    entries = parse(index)
    while entries:
        start = entries[-2].end_byte if len(entries) > 1 else 0
        end = entries[-1].end_byte
        if start < end <= start + BATCH_BYTES_MAX and is_sound(entries[-1], read(start, end)):
            break
        entries.pop()
    return entries


def extents(entries: Sequence[Entry], first_offset: int) -> Iterator[tuple[int, int, Entry]]:
    """For each entry the first offset and the first byte of its batch, and the entry."""
    for last, entry in pairwise((Entry(first_offset, 0, 0, 0), *entries)):
        yield last.end_offset, last.end_byte, entry
