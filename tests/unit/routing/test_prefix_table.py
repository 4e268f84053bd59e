"""The prefix table against `startswith`, prefix by prefix."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.routing.prefix_table import STRETCH_BYTES, PrefixTable

_pieces = st.sampled_from([b"a", b"b", b"a" * (STRETCH_BYTES - 1), b"a" * STRETCH_BYTES])
texts = st.lists(_pieces, max_size=4).map(b"".join)
prefix_sets = st.sets(texts.filter(bool), max_size=12)


def table_of(prefixes: Iterable[bytes]) -> PrefixTable[bytes]:
    """A table in which every prefix is its own value."""
    table: PrefixTable[bytes] = PrefixTable()
    for prefix in prefixes:
        table.add(prefix, prefix)
    return table


def collected(table: PrefixTable[bytes], text: bytes) -> list[bytes]:
    found: list[bytes] = []
    table.collect(text, found)
    return found


@given(prefix_sets, texts)
def test_collects_each_prefix_of_a_text_once_shortest_first(
    prefixes: set[bytes], text: bytes
) -> None:
    expected = sorted((prefix for prefix in prefixes if text.startswith(prefix)), key=len)
    assert collected(table_of(prefixes), text) == expected


@given(prefix_sets, st.data())
def test_removal_leaves_the_rest_and_in_the_end_nothing(
    prefixes: set[bytes], data: st.DataObject
) -> None:
    table = table_of(prefixes)
    order = data.draw(st.permutations(sorted(prefixes)))
    for count, prefix in enumerate(order, start=1):
        assert bool(table)
        table.remove(prefix)
        table.check_invariants()
        left = set(order[count:])
        assert dict(table.items()) == {prefix: prefix for prefix in left}
        assert {prefix for prefix in prefixes if table.get(prefix) is not None} == left
    assert not table


@pytest.mark.parametrize("prefix", [b"b", b"ab", b"a" * 65, b"a" * 129])
def test_removing_what_is_not_there_is_an_error(prefix: bytes) -> None:
    table = table_of([b"a", b"a" * 66, b"a" * 64])
    with pytest.raises(KeyError):
        table.remove(prefix)
    table.check_invariants()


@pytest.mark.parametrize("size", [1, STRETCH_BYTES, STRETCH_BYTES + 1, 2 * STRETCH_BYTES, 4096])
def test_prefixes_of_every_length(size: int) -> None:
    table = table_of(b"a" * length for length in range(1, size + 1))
    assert len(collected(table, b"a" * size)) == size
    assert collected(table, b"b" + b"a" * size) == []
    assert len(collected(table, b"a" * (size - 1) + b"b")) == size - 1
