"""The index beside a segment: what of it counts.

A segment is one Arrow IPC stream to which record batches are appended. For each there is an entry
of 32 bytes, written when the batch is safely on disk:

    end offset · end byte · newest timestamp · check        each a little-endian unsigned 64 bits

`check` is the CRC-32 of the three words before it and of the segment's bytes since the end byte of
the entry before (for the first entry since byte 0, so with the schema). Only the last batch, or the
last entry, can be torn by a crash. So what counts is everything up to the last entry whose check is
right, and what is behind that is cut off.

Pure: is given bytes.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

ENTRY_BYTES = 32
BATCH_BYTES_MAX = 1 << 30
"""No batch is that large, so what says so is torn."""
_ENTRY = struct.Struct("<QQQQ")
_WORDS = struct.Struct("<QQQ")

Bytes = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """What a batch ends with; `end_offset` and `end_byte` are exclusive."""

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
    """Every whole entry; whether it counts is not looked at."""
    whole = len(index) - len(index) % ENTRY_BYTES
    return [Entry._make(words) for words in _ENTRY.iter_unpack(index[:whole])]


def is_sound(entry: Entry, batch: Bytes) -> bool:
    """Whether these are the bytes that the entry was written for."""
    return entry == seal(entry.end_offset, entry.end_byte, entry.newest_us, batch)


def committed(index: Bytes, read: Callable[[int, int], Bytes]) -> list[Entry]:
    """The entries that count; `read` gives the bytes of the segment from one place to another, as
    far as there are any. Usually that is done for the last entry alone."""
    entries = parse(index)
    while entries:
        start = entries[-2].end_byte if len(entries) > 1 else 0
        end = entries[-1].end_byte
        if start < end <= start + BATCH_BYTES_MAX and is_sound(entries[-1], read(start, end)):
            break
        entries.pop()
    return entries


def extents(entries: Sequence[Entry], first_offset: int) -> Iterator[tuple[int, int, Entry]]:
    """For each entry the offset and the byte that its batch begins with, and the entry."""
    before = Entry(first_offset, 0, 0, 0)
    for last, entry in pairwise((before, *entries)):
        yield last.end_offset, last.end_byte, entry
