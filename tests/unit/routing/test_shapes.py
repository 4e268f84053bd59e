"""The bound of a match: no key takes more steps than the shapes of the patterns allow."""

import sys
from collections.abc import Iterable
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.protocol.keys import SLASH, PatternPath, parse_pattern
from sbus.routing.path_trie import PathTrie
from sbus.routing.prefix_table import STRETCH_BYTES
from sbus.routing.shapes import Shapes
from tests.unit.routing.texts import texts


def path_of(pattern: bytes) -> PatternPath:
    path = parse_pattern(pattern, SLASH)
    assert path is not None
    return path


def shapes_of(patterns: Iterable[bytes]) -> Shapes:
    shapes = Shapes()
    for pattern in patterns:
        shapes.add(path_of(pattern))
    return shapes


# -- by hand ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("patterns", "steps"),
    [
        ([], 0),
        ([b""], 0),
        ([b"a/"], 1),
        ([b"*"], 1),
        ([b"a/*"], 2),
        ([b"a/*", b"b/*", b"a/*/", b"c/**"], 2),
        ([b"a/*", b"a/b*", b"a/c*", b"a/cc*"], 4),
        ([b"a/*/c", b"a/*/d", b"a/*/c/"], 3),
        ([b"*/a/", b"a*/a/"], 4),
        ([b"x" * STRETCH_BYTES + b"*"], 1),
        ([b"x" * STRETCH_BYTES + b"x*"], 2),
        ([b"x" * 2 * STRETCH_BYTES + b"x*/b/"], 4),
    ],
)
def test_steps_by_hand(patterns: list[bytes], steps: int) -> None:
    assert shapes_of(patterns).steps == steps


def test_prefixes_of_every_length_take_a_step_for_each_pair() -> None:
    patterns = [b"x" * one + b"*/" + b"x" * other + b"*/" for one in range(9) for other in range(9)]
    assert shapes_of(patterns).steps == 9 + 9 * 9


# -- any patterns ----------------------------------------------------------------------------------
PATHS = texts.map(lambda text: parse_pattern(text, SLASH)).filter(
    lambda path: path is not None and not path.is_literal
)


@given(st.lists(PATHS, max_size=10), st.randoms(use_true_random=False))
def test_what_is_removed_leaves_nothing(paths: list[PatternPath], random: Random) -> None:
    """Also, `steps_of` is what `add` adds."""
    shapes = Shapes()
    for path in paths:
        before, more = shapes.steps, shapes.steps_of(path)
        shapes.add(path)
        assert shapes.steps == before + more
        assert not shapes.steps_of(path)
    random.shuffle(paths)
    for number, path in enumerate(paths, 1):
        shapes.remove(path)
        left = Shapes()
        for other in paths[number:]:
            left.add(other)
        assert shapes.steps == left.steps
    assert not shapes
    assert not shapes._root.longer


# -- against the trie ------------------------------------------------------------------------------
A_LONG_TEXT = b"a" * (STRETCH_BYTES + 1)
_segments = st.sampled_from([b"a", b"aa", b"b", b"*", b"a*", b"aa*", b"b*", A_LONG_TEXT + b"*"])
_ends = st.sampled_from([b"", b"/"])
_alike = st.builds(
    lambda segments, end: b"/".join(segments) + end, st.lists(_segments, max_size=6), _ends
)
PATTERNS = st.lists(st.one_of(_alike, _alike, texts), max_size=40)
KEYS = st.one_of(
    st.lists(st.sampled_from([b"a", b"aa", b"b", A_LONG_TEXT]), min_size=1, max_size=7).map(
        b"/".join
    ),
    texts,
)


@settings(max_examples=3 * settings().max_examples)
@given(PATTERNS, st.lists(KEYS, min_size=1, max_size=5))
def test_no_key_takes_more_steps_than_are_counted(patterns: list[bytes], keys: list[bytes]) -> None:
    trie: PathTrie[bool] = PathTrie()
    shapes = Shapes()
    for pattern in patterns:
        path = parse_pattern(pattern, SLASH)
        if path is not None and not path.is_literal:
            trie.put(path, True)
            shapes.add(path)
    for key in keys:
        segments = key.split(b"/")
        visits, lines = cost_of_match(trie, segments)
        assert visits - 1 <= len(matching_beginnings(trie, segments)) <= shapes.steps
        assert lines <= LINES_OF_ROOT + LINES_PER_STEP * shapes.steps


LINES_OF_ROOT = 40
LINES_PER_STEP = 20
"""At most so many lines of Python are run for each step; a visit with all kinds of children takes
the most."""


def matching_beginnings(trie: PathTrie[bool], segments: list[bytes]) -> set[object]:
    """The beginnings of all paths that match as many segments of a key."""
    beginnings: set[object] = set()
    for path, _ in trie.items():
        edges = list(zip(path.segments, path.wildcards, strict=True))
        for depth, ((text, wildcard), segment) in enumerate(zip(edges, segments, strict=False), 1):
            if not (segment.startswith(text) if wildcard else segment == text):
                break
            beginnings.add(tuple(edges[:depth]))
    return beginnings


def cost_of_match(trie: PathTrie[bool], segments: list[bytes]) -> tuple[int, int]:
    """The nodes that a match visits, with the root, and the lines of Python that it runs."""
    visits = lines = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal visits, lines
        lines += event == "line"
        if event == "return" and frame.f_code is PathTrie.collect.__code__:
            visits = len(frame.f_locals["reached"])
        return trace if str(frame.f_globals.get("__name__")).startswith("sbus.") else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        trie.collect(segments, [], literally=False)
    finally:
        sys.settrace(before)
    return visits, lines
