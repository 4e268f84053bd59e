"""A table of non-empty prefixes: the values of all prefixes that a text begins with.

There is one dict lookup for each length that occurs among the prefixes with the first byte of the
text, shortest first. Lengths are few and slices short, because a table contains only prefixes of up
to `STRETCH_BYTES`; longer ones are in further tables, found by that first stretch. So a text of n
bytes costs at most n lookups of short slices, whatever the prefixes, and a prefix that differs from
the text early costs nothing further on.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

STRETCH_BYTES: Final = 64
"""Longer than most segments, so that one table is usually enough, and short enough to slice and
hash in about the time of a lookup. The longest possible prefix makes 64 tables."""


class PrefixTable(Generic[T]):
    """A mapping from non-empty prefixes to values that are not None.

    Invariants: every key of `_ends` has 1 to `STRETCH_BYTES` bytes; `_lengths[first][n]`, n
    ascending, is the number of keys of `_ends` that have n bytes and begin with `first`, never 0;
    keys of `_further` have exactly `STRETCH_BYTES` bytes and no table there is empty.
    """

    __slots__ = ("_ends", "_further", "_lengths")

    def __init__(self) -> None:
        self._ends: dict[bytes, T] = {}
        self._lengths: dict[bytes, dict[int, int]] = {}
        self._further: dict[bytes, PrefixTable[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._ends or self._further)

    def get(self, prefix: bytes) -> T | None:
        """The value of exactly this prefix, or None."""
        table: PrefixTable[T] | None = self
        while table is not None and len(prefix) > STRETCH_BYTES:
            table = table._further.get(prefix[:STRETCH_BYTES])
            prefix = prefix[STRETCH_BYTES:]
        return None if table is None else table._ends.get(prefix)

    def add(self, prefix: bytes, value: T) -> None:
        """Add a prefix that is not there yet."""
        table = self
        while len(prefix) > STRETCH_BYTES:
            stretch = prefix[:STRETCH_BYTES]
            if stretch not in table._further:
                table._further[stretch] = PrefixTable()
            table = table._further[stretch]
            prefix = prefix[STRETCH_BYTES:]
        table._ends[prefix] = value
        lengths = table._lengths.setdefault(prefix[:1], {})
        if len(prefix) in lengths:
            lengths[len(prefix)] += 1
        else:
            lengths[len(prefix)] = 1
            table._lengths[prefix[:1]] = dict(sorted(lengths.items()))

    def remove(self, prefix: bytes) -> None:
        """Remove a prefix; KeyError when it is not there."""
        trail: list[tuple[PrefixTable[T], bytes]] = []
        table = self
        while len(prefix) > STRETCH_BYTES:
            trail.append((table, prefix[:STRETCH_BYTES]))
            table = table._further[prefix[:STRETCH_BYTES]]
            prefix = prefix[STRETCH_BYTES:]
        del table._ends[prefix]
        lengths = table._lengths[prefix[:1]]
        lengths[len(prefix)] -= 1
        if not lengths[len(prefix)]:
            del lengths[len(prefix)]
            if not lengths:
                del table._lengths[prefix[:1]]
        for holder, stretch in reversed(trail):
            if holder._further[stretch]:
                break
            del holder._further[stretch]

    def collect(self, text: bytes, found: list[T]) -> None:
        """Append to `found` the values of all prefixes that `text` begins with."""
        table: PrefixTable[T] | None = self
        while table is not None:
            lengths = table._lengths.get(text[:1])
            if lengths is not None:
                size = len(text)
                for length in lengths:
                    if length > size:
                        break
                    value = table._ends.get(text[:length])
                    if value is not None:
                        found.append(value)
            if not table._further:
                break
            table = table._further.get(text[:STRETCH_BYTES])
            text = text[STRETCH_BYTES:]

    def items(self) -> Iterator[tuple[bytes, T]]:
        """All prefixes with their values, in no particular order."""
        for before, table in self._tables():
            for end, value in table._ends.items():
                yield before + end, value

    def check_invariants(self) -> None:
        """Recount everything; AssertionError where the invariants do not hold."""
        for _, table in self._tables():
            recount: dict[bytes, dict[int, int]] = {}
            for end in table._ends:
                assert 1 <= len(end) <= STRETCH_BYTES
                lengths = recount.setdefault(end[:1], {})
                lengths[len(end)] = lengths.get(len(end), 0) + 1
            assert table._lengths == recount
            assert all(list(lengths) == sorted(lengths) for lengths in table._lengths.values())
            assert all(len(stretch) == STRETCH_BYTES for stretch in table._further)
            assert all(table._further.values())

    def _tables(self) -> "Iterator[tuple[bytes, PrefixTable[T]]]":
        """This table and those below it, each with what its prefixes have before their ends."""
        waiting = [(b"", self)]
        while waiting:
            before, table = waiting.pop()
            waiting.extend((before + stretch, it) for stretch, it in table._further.items())
            yield before, table
