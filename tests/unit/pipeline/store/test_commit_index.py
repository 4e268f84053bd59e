"""Which batches of a segment file are committed after a cut anywhere, or with any bit flipped.

The oracle has the batches themselves: those up to the first that is not whole on disk.
"""

import struct
import zlib

from hypothesis import given
from hypothesis import strategies as st

from sbus.pipeline.store import commit_index
from sbus.pipeline.store.commit_index import ENTRY_BYTES, Entry

BATCHES = st.lists(
    st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 5), st.integers(0, 2**40)),
    max_size=5,
)


def files(batches: list[tuple[bytes, int, int]]) -> tuple[bytes, bytes, list[Entry]]:
    """A segment file and its index, written as documented, and the entries in it."""
    segment, index, entries = b"", b"", []
    offset = 0
    for data, rows, newest_us in batches:
        segment += data
        offset += rows
        words = struct.pack("<QQQ", offset, len(segment), newest_us)
        check = zlib.crc32(words + data)
        index += words + struct.pack("<Q", check)
        entries.append(Entry(offset, len(segment), newest_us, check))
    return segment, index, entries


def committed(segment: bytes, index: bytes) -> list[Entry]:
    return commit_index.committed(index, lambda start, end: segment[start:end])


@given(BATCHES, st.data())
def test_after_a_cut_exactly_the_whole_batches_are_committed(
    batches: list[tuple[bytes, int, int]], data: st.DataObject
) -> None:
    segment, index, entries = files(batches)
    assert commit_index.parse(index) == entries
    assert b"".join(entry.pack() for entry in entries) == index
    segment_left = data.draw(st.integers(0, len(segment)))
    index_left = data.draw(st.integers(0, len(index)))
    whole = [
        entry
        for number, entry in enumerate(entries, 1)
        if entry.end_byte <= segment_left and number * ENTRY_BYTES <= index_left
    ]
    assert committed(segment[:segment_left], index[:index_left]) == whole


@given(BATCHES.filter(bool), st.binary(max_size=100), st.data())
def test_a_torn_entry_is_not_committed(
    batches: list[tuple[bytes, int, int]], torn: bytes, data: st.DataObject
) -> None:
    segment, index, entries = files(batches)
    cut = data.draw(st.integers(0, ENTRY_BYTES - 1))
    torn_index = index[: -ENTRY_BYTES + cut] + bytes(ENTRY_BYTES - cut)
    expected = entries if torn_index == index else entries[:-1]
    assert committed(segment + torn, torn_index) == expected
    assert committed(segment + torn, index) == entries, "what is behind does no harm"


@given(BATCHES.filter(bool), st.data())
def test_a_flipped_bit_in_the_last_batch_is_detected(
    batches: list[tuple[bytes, int, int]], data: st.DataObject
) -> None:
    segment, index, entries = files(batches)
    last = batches[-1][0]
    at = data.draw(st.integers(0, 8 * (len(last) + ENTRY_BYTES) - 1))
    joined = bytearray(segment[-len(last) :] + index[-ENTRY_BYTES:])
    joined[at // 8] ^= 1 << at % 8
    flipped_segment = segment[: -len(last)] + bytes(joined[: len(last)])
    flipped_index = index[:-ENTRY_BYTES] + bytes(joined[len(last) :])
    assert committed(flipped_segment, flipped_index) == entries[:-1]


def test_extents_tell_where_each_batch_begins() -> None:
    _, _, entries = files([(b"abc", 2, 9), (b"d", 1, 9)])
    assert [(first, start) for first, start, _ in commit_index.extents(entries, 0)] == [
        (0, 0),
        (2, 3),
    ]
