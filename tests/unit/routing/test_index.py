"""The pattern index: what it counts, and that no patterns make a match or its memory cost much."""

import itertools
import sys
import tracemalloc
from collections.abc import Iterable
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.keys import SLASH, PatternPath, parse_pattern
from sbus.routing.index import IndexStatistics, PatternIndex
from tests.unit.routing.texts import texts

EMPTY = IndexStatistics(nodes=1, patterns=0, subscriptions=0)


def index_of(patterns: Iterable[bytes]) -> PatternIndex[bytes]:
    """An index in which every pattern is its own member."""
    index: PatternIndex[bytes] = PatternIndex(SLASH)
    for pattern in patterns:
        path = parse_pattern(pattern, SLASH)
        if path is not None:
            index.add(path, pattern)
    return index


def remove(index: PatternIndex[bytes], pattern: bytes) -> bool:
    path = parse_pattern(pattern, SLASH)
    assert path is not None
    return index.remove(path, pattern)


@pytest.mark.parametrize("pattern", [b"a/b", b"a/*"])
def test_what_is_there_already_or_is_not_there_changes_nothing(pattern: bytes) -> None:
    index = index_of([pattern])
    path = parse_pattern(pattern, SLASH)
    assert path is not None
    for worker in (0, 63):
        assert index.add_worker(path, worker)
        assert not index.add_worker(path, worker)
    with pytest.raises(KeyError):
        index.remove(path, b"another")
    index.check_invariants()
    assert index.match_all(b"a/b") == (1 | 1 << 63, {pattern})
    assert index.remove_worker(path, 0)
    assert not index.remove_worker(path, 0)
    assert index.remove_worker_everywhere(63)
    assert not index.remove_worker_everywhere(63)
    assert remove(index, pattern)
    with pytest.raises(KeyError):
        remove(index, pattern)
    index.check_invariants()
    assert index.statistics() == EMPTY


def test_the_costliest_match_counts_until_a_path_is_added() -> None:
    index = index_of([b"a/*", b"a/*/c", b"a/b*/", b"b"])
    assert index.match_steps_max == 0
    index.match(b"z")
    assert index.match_steps_max == 1
    index.match(b"a/b/c")
    index.match(b"z")
    # The root, a, a/*, a/*/c and a/b*.
    assert index.match_steps_max == 5
    remove(index, b"a/*/c")
    index_member = parse_pattern(b"a/*", SLASH)
    assert index_member is not None
    index.add(index_member, b"another member")
    assert index.match_steps_max == 5, "a match takes no longer than before"
    another = parse_pattern(b"z*", SLASH)
    assert another is not None
    index.add(another, b"z*")
    assert index.match_steps_max == 0


def test_the_path_with_most_members_is_known() -> None:
    index = index_of([b"a/*", b"b"])
    assert index.members_max == 1
    paths = [parse_pattern(pattern, SLASH) for pattern in (b"a/*", b"b")]
    for path, size in zip(paths, (3, 5), strict=True):
        assert path is not None
        for member in range(size):
            index.add(path, b"%d" % member)
            index.add(path, b"%d" % member)
        index.add_worker(path, 0)
    assert index.members_max == 6, "each once, with the first, and no workers"
    for path, expected in zip(reversed(paths), (4, 1), strict=True):
        assert path is not None
        for member in range(5 if path.is_literal else 3):
            index.remove(path, b"%d" % member)
            index.remove(path, b"%d" % member)
            index.check_invariants()
        assert index.members_max == expected


@given(st.sets(texts, max_size=8), st.sets(texts, max_size=8), st.randoms(use_true_random=False))
def test_the_size_depends_on_what_is_there_and_not_on_what_was(
    staying: set[bytes], leaving: set[bytes], random: Random
) -> None:
    def paths(patterns: set[bytes]) -> list[PatternPath]:
        parsed = [parse_pattern(pattern, SLASH) for pattern in sorted(patterns)]
        return [path for path in parsed if path is not None]

    fresh: PatternIndex[int] = PatternIndex(SLASH)
    for path in paths(staying):
        fresh.add(path, 1)
    used: PatternIndex[int] = PatternIndex(SLASH)
    order = paths(staying) + paths(leaving)
    random.shuffle(order)
    for path in order:
        used.add(path, 1)
    order = paths(leaving)
    random.shuffle(order)
    for path in order:
        used.remove(path, 1)
    assert used.statistics() == fresh.statistics()


def hostile_patterns(count_log2: int, end: bytes) -> list[bytes]:
    """Patterns of 127 segments that all match a key of as many `a` up to `end`."""
    fill = [b"*"] * (126 - count_log2)
    heads = itertools.product((b"a", b"*"), repeat=count_log2)
    return [b"/".join([*head, *fill, end]) for head in heads]


@pytest.mark.parametrize("ends", [[b"z"], [b"y", b"z"], [b"y*", b"z"]])
def test_deep_patterns_that_fail_at_their_end_cost_a_few_lines_each(ends: list[bytes]) -> None:
    patterns = [pattern for end in ends for pattern in hostile_patterns(8, end)]
    index = index_of(patterns)
    assert index.statistics().nodes <= 2 * len(patterns)
    key = b"/".join([b"a"] * 127)
    assert index.match(key) == set()
    assert lines_run_by_match(index, key) < 60 * len(patterns)


def test_deep_patterns_take_memory_by_their_number() -> None:
    def bytes_of(patterns: list[bytes]) -> int:
        paths = [parse_pattern(pattern, SLASH) for pattern in patterns]
        index: PatternIndex[int] = PatternIndex(SLASH)
        tracemalloc.start()
        try:
            for path in paths:
                assert path is not None
                index.add(path, 1)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert bytes_of(hostile_patterns(8, b"z")) < 2_000 * 2**8


def test_an_emptied_index_holds_no_memory() -> None:
    shapes = (b"s/%d", b"s/%d/", b"p%d*", b"*/%d", b"%d/*/*/")
    patterns = [shape % number for number in range(2_000) for shape in shapes]
    paths = [parse_pattern(pattern, SLASH) for pattern in patterns]
    index: PatternIndex[int] = PatternIndex(SLASH)
    tracemalloc.start()
    try:
        for change in (index.add, index.remove):
            for path in paths:
                assert path is not None
                change(path, 1)
            if change == index.add:
                full_bytes, _ = tracemalloc.get_traced_memory()
        emptied_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.statistics() == EMPTY
    assert full_bytes > 1_000_000
    assert emptied_bytes < 20_000


def test_the_longest_and_deepest_patterns_match_without_recursion() -> None:
    deep = b"a/" * 2_000
    index = index_of([deep, deep + b"*", deep + b"a"])
    assert index.match(deep + b"a") == {deep, deep + b"*", deep + b"a"}
    for pattern in (deep, deep + b"*", deep + b"a"):
        remove(index, pattern)
    assert index.statistics() == EMPTY


def lines_run_by_match(index: PatternIndex[bytes], key: bytes) -> int:
    """Lines of Python that one match executes: a measure of its cost that no load disturbs. Those
    of finalizers, which may run at any moment, do not count."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if str(frame.f_globals.get("__name__")).startswith("sbus.") else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        index.match(key)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize(
    "others",
    [
        [b"load/p%04d*" % number for number in range(10_000)],
        [b"a/b/c/x%04d" % number for number in range(10_000)],
        [b"load/%d/x/" % number for number in range(10_000)],
        [b"load/" + b"p" * length + b"*" for length in range(1, 500)],
    ],
    ids=["prefixes", "literals", "subtrees", "prefixes of every length"],
)
def test_patterns_that_do_not_match_cost_nothing(others: list[bytes]) -> None:
    among = index_of(others)
    for own in (b"a/b/c/d", b"a/b/c/", b"a/b*/*/d", b""):
        alone = index_of([own, others[0]])
        path = parse_pattern(own, SLASH)
        assert path is not None
        among.add(path, own)
        assert lines_run_by_match(among, b"a/b/c/d") == lines_run_by_match(alone, b"a/b/c/d")
        among.remove(path, own)


def test_many_prefixes_at_a_node_on_the_way_cost_no_more_than_two() -> None:
    few = lines_run_by_match(index_of([b"a/b/c/d", b"a/x0000*", b"a/x0001*"]), b"a/b/c/d")
    many = lines_run_by_match(
        index_of([b"a/b/c/d", *(b"a/x%04d*" % number for number in range(5_000))]), b"a/b/c/d"
    )
    assert many == few


def test_prefixes_of_every_length_cost_at_most_a_few_lines_for_each_byte_of_the_key() -> None:
    index = index_of(b"a" * length + b"b*" for length in range(4_000))
    assert lines_run_by_match(index, b"a" * 4_000) < 8 * 4_000
    assert lines_run_by_match(index, b"aaaa") < 60
