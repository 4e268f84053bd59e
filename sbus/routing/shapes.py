"""The shapes of patterns, which bound the steps of a match whatever the key is.

The *shape* of a path is what is left of it without its texts: for each segment, that it is a
literal, or else the length of the prefix before the `*`. A shape tells which part of each segment
of a key has to be equal to the pattern's. So among all beginnings of paths that have one shape, a
key matches one at most, and a match follows no more beginnings than these have shapes:

    steps of a match  <=  Σ cost of the different shapes of beginnings

A *step* is a visit of a node of the trie, a test of a segment, or a lookup in a table of prefixes.
Patterns without wildcards are not in the trie and take none.

However many patterns a user has, they have few shapes, unless they are chosen to occupy the bus:
`x*/x*/`, `x*/xx*/`, `xx*/x*/` and so on have a shape each, and all of them match the same keys.
"""

from typing import Final

from sbus.protocol.keys import PatternPath
from sbus.routing.prefix_table import STRETCH_BYTES

_LITERAL: Final = -1


class _Beginning:
    """A shape that paths begin with; its last segment is the key under which it is found."""

    __slots__ = ("longer", "paths")

    def __init__(self) -> None:
        self.longer: dict[int, _Beginning] = {}
        """The same with one segment more, by the shape of that."""
        self.paths = 0
        """How many paths begin so."""


class Shapes:
    """A multiset of paths that are no literals, of which only the shapes are kept.

    Invariant: `steps` is the sum of the costs of all beginnings, and each has at least one path.
    """

    __slots__ = ("_root", "steps")

    def __init__(self) -> None:
        self._root = _Beginning()
        self.steps = 0
        """The most that a match against all of these paths takes."""

    def __bool__(self) -> bool:
        return self._root.paths > 0

    def steps_of(self, path: PatternPath) -> int:
        """The steps that one more path would add."""
        steps = 0
        at: _Beginning | None = self._root
        for segment in _shape_of(path):
            at = None if at is None else at.longer.get(segment)
            if at is None:
                steps += _cost(segment)
        return steps

    def add(self, path: PatternPath) -> None:
        at = self._root
        at.paths += 1
        for segment in _shape_of(path):
            longer = at.longer.get(segment)
            if longer is None:
                longer = at.longer[segment] = _Beginning()
                self.steps += _cost(segment)
            at = longer
            at.paths += 1

    def remove(self, path: PatternPath) -> None:
        """Remove a path that was added."""
        at = self._root
        at.paths -= 1
        for segment in _shape_of(path):
            before, at = at, at.longer[segment]
            at.paths -= 1
            if not at.paths:
                del before.longer[segment]
                self.steps -= _cost(segment)


def _shape_of(path: PatternPath) -> list[int]:
    """The shape of a path, segment by segment."""
    segments = zip(path.segments, path.wildcards, strict=True)
    return [len(text) if wildcard else _LITERAL for text, wildcard in segments]


def _cost(segment: int) -> int:
    """The steps that a segment takes: one, and one for each further table that a long prefix is
    looked for in."""
    return 1 + max(segment - 1, 0) // STRETCH_BYTES
