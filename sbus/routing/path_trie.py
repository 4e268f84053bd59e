"""A trie of pattern paths: the values of all paths that match a key, split into segments.

It is compressed: p paths of any depth need at most 2p nodes. A lookup visits the nodes whose paths
match the key so far. Each node knows its depth, so a list of nodes to visit is enough, without
recursion. A node that is reached before the end of the key yields its `subtree` value, one that is
reached at the end its `exact` one. The worst case is one step, with one test of a run, for
each node whose parent matches; `shapes.py` bounds their number.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from sbus.protocol.keys import PatternPath
from sbus.routing.trie_node import LONE_STAR, Node, run_behind

V = TypeVar("V")


class PathTrie(Generic[V]):
    """A mapping from paths to values that are not None.

    Invariants, for a node n and its parent p:
    p.depth < n.depth; the tests of n.run have different indices, from p.depth + 1 to n.depth - 1,
    and none is a lone `*`; n has a value or at least two children, so that
    nodes <= max(1, 2 * paths). The root has depth 0 and no run, and may be empty. `nodes` and
    `paths` are their numbers.
    """

    def __init__(self) -> None:
        self._root: Node[V] = Node(0, None)
        self.nodes = 1
        self.paths = 0

    def get(self, path: PatternPath) -> V | None:
        """The value of exactly this path, or None."""
        node = self._find(path)[1]
        if node is None:
            return None
        return node.subtree if path.subtree else node.exact

    def put(self, path: PatternPath, value: V) -> None:
        """Give exactly this path a value, which replaces any other."""
        node = self._make(path)
        if path.subtree:
            self.paths += node.subtree is None
            node.subtree = value
        else:
            self.paths += node.exact is None
            node.exact = value

    def remove(self, path: PatternPath) -> None:
        """Remove a path that is there, and the nodes that only it needed."""
        parent, node = self._find(path)
        assert node is not None
        if path.subtree:
            node.subtree = None
        else:
            node.exact = None
        self.paths -= 1
        if node is not self._root and not node.has_values and not node.has_children:
            parent.drop_child(path.segments[parent.depth], path.wildcards[parent.depth])
            self.nodes -= 1
            node = parent
        if node is not self._root and not node.has_values:
            only = node.only_edge()
            if only is not None:
                node.absorb(*only)
                self.nodes -= 1

    def collect(self, segments: list[bytes], found: list[V], literally: bool) -> int:
        """Append to `found` the values of all paths that match a key with these segments; with
        `literally`, only of paths whose first segment is a literal. Returns how many nodes that
        visited."""
        reached = [self._root]
        if literally:
            start = self._root.child(segments[0], wildcard=False)
            reached = [] if start is None else [start]
        size = len(segments)
        for node in reached:  # which grows meanwhile
            depth = node.depth
            if depth >= size:
                if depth > size or node.exact is None:
                    continue
                if node.run is None or node.run.holds(segments):
                    found.append(node.exact)
                continue
            if node.run is not None and not node.run.holds(segments):
                continue
            if node.subtree is not None:
                found.append(node.subtree)
            segment = segments[depth]
            if node.literals is not None:
                child = node.literals.get(segment)
                if child is not None:
                    reached.append(child)
            if node.anything is not None:
                reached.append(node.anything)
            if node.prefixes is not None:
                node.prefixes.collect(segment, reached)
        return len(reached)

    def items(self) -> Iterator[tuple[PatternPath, V]]:
        """All paths with their values, in no particular order."""
        waiting: list[tuple[Node[V], tuple[tuple[bytes, bool], ...]]] = [(self._root, ())]
        while waiting:
            node, edges = waiting.pop()
            for segment, wildcard, child in node.edges():
                run = child.run_edges(node.depth + 1)
                waiting.append((child, (*edges, (segment, wildcard), *run)))
            segments = tuple(segment for segment, _ in edges)
            wildcards = tuple(wildcard for _, wildcard in edges)
            for value, subtree in ((node.exact, False), (node.subtree, True)):
                if value is not None:
                    yield PatternPath(segments, wildcards, subtree), value

    def check_invariants(self) -> None:
        """Recount everything; AssertionError where the invariants do not hold."""
        root = self._root
        assert root.depth == 0
        assert root.run is None
        nodes = 1
        for parent, node in self._edges():
            if node is not root:
                nodes += 1
                tests = [] if node.run is None else list(node.run.tests())
                assert tests or node.run is None
                assert len({index for index, _, _ in tests}) == len(tests)
                assert all(parent.depth < index < node.depth for index, _, _ in tests)
                assert all(test[1:] != LONE_STAR for test in tests)
                assert parent.depth < node.depth
                assert node.has_values or sum(1 for _ in node.edges()) >= 2
            assert node.literals is None or node.literals
            if node.prefixes is not None:
                assert node.prefixes
                node.prefixes.check_invariants()
        assert nodes == self.nodes
        assert all(self.get(path) is value for path, value in self.items())
        assert sum(1 for _ in self.items()) == self.paths
        assert nodes <= max(1, 2 * self.paths)

    def _make(self, path: PatternPath) -> Node[V]:
        """The node at the end of exactly this path."""
        node = self._root
        while node.depth < len(path.segments):
            segment, wildcard = path.segments[node.depth], path.wildcards[node.depth]
            begin = node.depth + 1
            child = node.child(segment, wildcard)
            if child is None:
                child = Node(len(path.segments), run_behind(path, begin))
                node.enter_child(segment, wildcard, child)
                self.nodes += 1
            elif child.depth > begin:
                depth = child.shared_depth(path, begin)
                if depth < child.depth:
                    child.split(depth)
                    self.nodes += 1
            node = child
        return node

    def _find(self, path: PatternPath) -> tuple[Node[V], Node[V] | None]:
        """The last node before the end of exactly this path, and the node there, or None."""
        parent = node = self._root
        while node.depth < len(path.segments):
            begin = node.depth + 1
            child = node.child(path.segments[node.depth], path.wildcards[node.depth])
            if child is None or (
                child.depth > begin and child.shared_depth(path, begin) < child.depth
            ):
                return node, None
            parent, node = node, child
        return parent, node

    def _edges(self) -> Iterator[tuple[Node[V], Node[V]]]:
        """All nodes, each with its parent; the root is its own parent."""
        waiting = [(self._root, self._root)]
        while waiting:
            parent, node = waiting.pop()
            waiting.extend((node, child) for _, _, child in node.edges())
            yield parent, node
