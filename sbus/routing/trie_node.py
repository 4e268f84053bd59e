"""A node of the trie of pattern paths, and the run of segments that leads to it.

There are nodes only where paths diverge or end. A parent finds a child by one segment, its edge:
among the literal children, as the child of a lone `*`, or in a table of children for `prefix*`. The
segments between that edge and the node are its run, with a test for each but lone `*`s. All
literals of a run are taken from the key and compared in two calls, so that long runs are cheap;
then its prefixes are tested, from the end. Where a path leaves a run, the node is split; a node
that is left with nothing but one child absorbs it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Final, Generic, TypeVar

from sbus.protocol.keys import PatternPath
from sbus.routing.prefix_table import PrefixTable

V = TypeVar("V")

Test = tuple[int, bytes, bool]
"""Index of a segment in the key, its literal or prefix, and whether it is a prefix."""

LONE_STAR: Final = (b"", True)
"""The segment that needs no test."""


class Run:
    """Tests of some segments of a key, at least one; immutable."""

    __slots__ = ("_indices", "_literals", "_pick", "_prefixes")

    def __init__(self, tests: Iterable[Test]) -> None:
        literals: list[tuple[int, bytes]] = []
        prefixes: list[tuple[int, bytes]] = []
        for index, text, wildcard in tests:
            (prefixes if wildcard else literals).append((index, text))
        self._indices = tuple(index for index, _ in literals)
        texts = tuple(text for _, text in literals)
        self._pick = itemgetter(*self._indices) if literals else None
        self._literals = texts[0] if len(texts) == 1 else texts  # as `itemgetter` returns them
        self._prefixes = tuple(sorted(prefixes, reverse=True))

    def holds(self, segments: list[bytes]) -> bool:
        """Whether a key with these segments, long enough for all tests, passes them."""
        if self._pick is not None and self._pick(segments) != self._literals:
            return False
        for index, prefix in self._prefixes:  # noqa: SIM110, a generator costs more than the rest
            if not segments[index].startswith(prefix):
                return False
        return True

    def tests(self) -> Iterator[Test]:
        """The tests, in no particular order."""
        texts = (self._literals,) if isinstance(self._literals, bytes) else self._literals
        for index, text in zip(self._indices, texts, strict=True):
            yield index, text, False
        for index, text in self._prefixes:
            yield index, text, True


def run_of(tests: Iterable[Test]) -> Run | None:
    """The run of these tests, or None when there are none."""
    needed = list(tests)
    return Run(needed) if needed else None


def run_behind(path: PatternPath, begin: int) -> Run | None:
    """The run through the segments of `path` from index `begin` on."""
    if begin == len(path.segments):
        return None
    edges = zip(path.segments[begin:], path.wildcards[begin:], strict=True)
    return run_of((index, *edge) for index, edge in enumerate(edges, begin) if edge != LONE_STAR)


class Node(Generic[V]):
    """A place where paths diverge or end; its missing parts are None, never empty."""

    __slots__ = ("anything", "depth", "exact", "literals", "prefixes", "run", "subtree")

    def __init__(self, depth: int, run: Run | None) -> None:
        self.depth = depth
        self.run = run
        self.literals: dict[bytes, Node[V]] | None = None
        self.anything: Node[V] | None = None
        self.prefixes: PrefixTable[Node[V]] | None = None
        self.exact: V | None = None
        self.subtree: V | None = None

    @property
    def has_values(self) -> bool:
        return self.exact is not None or self.subtree is not None

    @property
    def has_children(self) -> bool:
        return not (self.literals is None and self.anything is None and self.prefixes is None)

    def child(self, segment: bytes, wildcard: bool) -> "Node[V] | None":
        """The child with exactly this edge."""
        if not wildcard:
            return None if self.literals is None else self.literals.get(segment)
        if not segment:
            return self.anything
        return None if self.prefixes is None else self.prefixes.get(segment)

    def enter_child(self, segment: bytes, wildcard: bool, node: "Node[V]") -> None:
        """Add `node` with an edge that is not there yet."""
        if not wildcard:
            if self.literals is None:
                self.literals = {}
            self.literals[segment] = node
        elif not segment:
            self.anything = node
        else:
            if self.prefixes is None:
                self.prefixes = PrefixTable()
            self.prefixes.add(segment, node)

    def drop_child(self, segment: bytes, wildcard: bool) -> None:
        """Remove a child that is there."""
        if not wildcard:
            assert self.literals is not None
            del self.literals[segment]
            self.literals = self.literals or None
        elif not segment:
            self.anything = None
        else:
            assert self.prefixes is not None
            self.prefixes.remove(segment)
            self.prefixes = self.prefixes or None

    def edges(self) -> "Iterator[tuple[bytes, bool, Node[V]]]":
        """All children, each with the segment that leads to it."""
        if self.literals is not None:
            for segment, node in self.literals.items():
                yield segment, False, node
        if self.anything is not None:
            yield (*LONE_STAR, self.anything)
        if self.prefixes is not None:
            for segment, node in self.prefixes.items():
                yield segment, True, node

    def only_edge(self) -> "tuple[bytes, bool, Node[V]] | None":
        """Segment and node of the only child, or None."""
        edges = list(islice(self.edges(), 2))
        return edges[0] if len(edges) == 1 else None

    def run_edges(self, begin: int) -> Iterator[tuple[bytes, bool]]:
        """The segments of the run, which begins at `begin`."""
        tests = self._tests()
        return (tests.get(index, LONE_STAR) for index in range(begin, self.depth))

    def shared_depth(self, path: PatternPath, begin: int) -> int:
        """The depth up to which `path` agrees with this node's run, which begins at `begin`."""
        end = min(self.depth, len(path.segments))
        tests = self._tests()
        for index in range(begin, end):
            edge = (path.segments[index], path.wildcards[index])
            if tests.get(index, LONE_STAR) != edge:
                return index
        return end

    def split(self, depth: int) -> None:
        """Become the node at `depth` on the run; what this node was becomes its child."""
        tests = self._tests()
        below: Node[V] = Node(self.depth, run_of((i, *tests[i]) for i in tests if i > depth))
        below._take_contents(self)
        self.run = run_of((i, *tests[i]) for i in tests if i < depth)
        self.depth = depth
        self.literals = self.anything = self.prefixes = self.exact = self.subtree = None
        self.enter_child(*tests.get(depth, LONE_STAR), below)

    def absorb(self, segment: bytes, wildcard: bool, child: "Node[V]") -> None:
        """Become `child`, which is the only part of this node; reverses `split`."""
        tests = self._tests() | child._tests()
        if (segment, wildcard) != LONE_STAR:
            tests[self.depth] = (segment, wildcard)
        self.run = run_of((i, *tests[i]) for i in tests)
        self.depth = child.depth
        self._take_contents(child)

    def _tests(self) -> dict[int, tuple[bytes, bool]]:
        """The tests of the run by index."""
        tests = () if self.run is None else self.run.tests()
        return {index: (text, wildcard) for index, text, wildcard in tests}

    def _take_contents(self, other: "Node[V]") -> None:
        self.literals, self.anything, self.prefixes = other.literals, other.anything, other.prefixes
        self.exact, self.subtree = other.exact, other.subtree
