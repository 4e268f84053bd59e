"""The pattern index against the specification and against a counter of what was added."""

import itertools
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from sbus.protocol.keys import SLASH, Dialect, PatternPath, parse_pattern
from sbus.routing.index import IndexStatistics, PatternIndex
from tests.unit.routing.specification import matches
from tests.unit.routing.texts import dialects, texts

EMPTY = IndexStatistics(nodes=1, patterns=0, subscriptions=0)
workers = st.sampled_from([0, 1, 63])


def index_of(patterns: Iterable[bytes], dialect: Dialect = SLASH) -> PatternIndex[bytes]:
    """An index in which every pattern is its own member."""
    index: PatternIndex[bytes] = PatternIndex(dialect)
    for pattern in patterns:
        path = parse_pattern(pattern, dialect)
        if path is not None:
            index.add(path, pattern)
    return index


def remove(index: PatternIndex[bytes], pattern: bytes) -> bool:
    path = parse_pattern(pattern, SLASH)
    assert path is not None
    return index.remove(path, pattern)


@settings(max_examples=4 * settings().max_examples)
@given(st.sets(texts, max_size=12), st.lists(texts, max_size=6), dialects)
def test_matches_what_the_specification_says(
    patterns: set[bytes], keys: list[bytes], dialect: Dialect
) -> None:
    index = index_of(patterns, dialect)
    index.check_invariants()
    for key in [*keys, *patterns]:
        assert index.match(key) == {
            pattern for pattern in patterns if matches(pattern, key, dialect)
        }


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


class AddingAndRemoving(RuleBasedStateMachine):
    """Any sequence of additions and removals leaves what a counter says is left."""

    present = Bundle("present")

    @initialize(dialect=dialects)
    def begin(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.index: PatternIndex[int] = PatternIndex(dialect)
        self.model: Counter[tuple[bytes, int]] = Counter()
        self.of_workers: set[tuple[bytes, int]] = set()

    @rule(target=present, pattern=texts, member=st.integers(0, 2))
    def add(self, pattern: bytes, member: int) -> tuple[bytes, int]:
        return self._add(pattern, member)

    @rule(target=present, stored=present)
    def add_another_member(self, stored: tuple[bytes, int]) -> tuple[bytes, int]:
        return self._add(stored[0], (stored[1] + 1) % 3)

    @rule(pattern=texts, worker=workers, adds=st.booleans())
    def change_worker(self, pattern: bytes, worker: int, adds: bool) -> None:
        self._change_worker(pattern, worker, adds=adds)

    @rule(stored=present, worker=workers, adds=st.booleans())
    def change_worker_beside_others(
        self, stored: tuple[bytes, int], worker: int, adds: bool
    ) -> None:
        self._change_worker(stored[0], worker, adds=adds)

    @rule(worker=workers)
    def remove_worker_everywhere(self, worker: int) -> None:
        left = {held for held in self.of_workers if held[1] != worker}
        assert self.index.remove_worker_everywhere(worker) == (left != self.of_workers)
        self.of_workers = left

    @rule(stored=consumes(present))
    def remove(self, stored: tuple[bytes, int]) -> None:
        self._remove(*stored)

    @rule(pattern=texts, member=st.integers(0, 2))
    def remove_what_may_be_missing(self, pattern: bytes, member: int) -> None:
        self._remove(pattern, member)

    @rule(target=present, stored=present, depth=st.integers(0, 6), behind=texts)
    def add_what_shares_a_beginning(
        self, stored: tuple[bytes, int], depth: int, behind: bytes
    ) -> tuple[bytes, int]:
        """Ends on the way to a pattern, or parts from it there: what nodes are split for."""
        segments = stored[0].split(self.dialect.separator)[:depth]
        pattern = self.dialect.separator.join([*segments, behind])
        return self._add(pattern, stored[1])

    @rule(stored=present, filling=st.sampled_from([b"", b"a", b"b"]), at=st.integers(0, 5))
    def match_what_a_pattern_nearly_matches(
        self, stored: tuple[bytes, int], filling: bytes, at: int
    ) -> None:
        key = stored[0].replace(b"*", filling)
        segments = key.split(self.dialect.separator)
        segments[at % len(segments)] = b"b"
        self._match(key)
        self._match(self.dialect.separator.join(segments))

    @rule(key=texts)
    def match(self, key: bytes) -> None:
        self._match(key)

    @invariant()
    def sizes_are_those_of_the_model(self) -> None:
        self.index.check_invariants()
        statistics = self.index.statistics()
        assert statistics.subscriptions == self.model.total() + len(self.of_workers)
        patterns = {pattern for pattern, _ in (*+self.model, *self.of_workers)}
        assert statistics.patterns == len(patterns)

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        for pattern, member in list(self.model.elements()):
            self._remove(pattern, member)
        for pattern, worker in list(self.of_workers):
            self._change_worker(pattern, worker, adds=False)
        assert self.index.statistics() == EMPTY
        self.index.check_invariants()

    def _match(self, key: bytes) -> None:
        members = {
            member
            for (pattern, member), count in self.model.items()
            if count and matches(pattern, key, self.dialect)
        }
        numbers = {
            worker for pattern, worker in self.of_workers if matches(pattern, key, self.dialect)
        }
        assert self.index.match(key) == members
        assert self.index.match_all(key) == (sum(1 << number for number in numbers), members)

    def _change_worker(self, pattern: bytes, worker: int, *, adds: bool) -> None:
        path = parse_pattern(pattern, self.dialect)
        if path is None:
            return
        held = {(_one_star(pattern), worker)}
        if adds:
            assert self.index.add_worker(path, worker) == (not held <= self.of_workers)
            self.of_workers |= held
        else:
            assert self.index.remove_worker(path, worker) == (held <= self.of_workers)
            self.of_workers -= held

    def _add(self, pattern: bytes, member: int) -> tuple[bytes, int]:
        path = parse_pattern(pattern, self.dialect)
        stored = (_one_star(pattern), member)
        if path is not None:
            assert self.index.add(path, member) == (self.model[stored] == 0)
            self.model[stored] += 1
        return stored

    def _remove(self, pattern: bytes, member: int) -> None:
        path = parse_pattern(pattern, self.dialect)
        stored = (_one_star(pattern), member)
        if path is None:
            return
        if not self.model[stored]:
            with pytest.raises(KeyError):
                self.index.remove(path, member)
            return
        assert self.index.remove(path, member) == (self.model[stored] == 1)
        self.model[stored] -= 1


def _one_star(pattern: bytes) -> bytes:
    """Repeated stars mean what one does, so the model knows such patterns by one spelling."""
    while b"**" in pattern:
        pattern = pattern.replace(b"**", b"*")
    return pattern


TestAddingAndRemoving = AddingAndRemoving.TestCase
TestAddingAndRemoving.settings = settings(
    max_examples=4 * settings().max_examples // 5, stateful_step_count=40
)
