"""The pattern index: who subscribed to something that matches a key?

A pattern without wildcards matches one key, so those are a dict by key and cost one lookup however
many there are. The rest are a trie by segment. Each node has literal children, one child for a
lone `*` and a table of children for `prefix*`; a key is walked segment by segment with the list of
nodes that match so far, so only nodes that match the key's beginning cost anything. A node reached
with segments left over yields its `subtree` subscribers, one reached at the end its `exact` ones.

The walk is not recursive. Its worst case is one step for each pattern that matches the key up to
some segment, which is what as many patterns that match the whole key would cost anyway.

Reserved keys are different: only a pattern whose first segment is literally `!` matches one.

Does not know clients, rights or limits; a subscriber is whatever hashes.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import msgspec

from sbus.protocol.keys import RESERVED_SEGMENT, Dialect, PatternPath, is_reserved
from sbus.routing.prefix_table import PrefixTable

S = TypeVar("S", bound=Hashable)


class IndexStatistics(msgspec.Struct, frozen=True):
    """Sizes of an index at one instant."""

    nodes: int
    """Nodes of the trie, the root included; patterns without wildcards need none."""
    patterns: int
    """Different paths that somebody subscribed to."""
    subscriptions: int
    """Additions that were not removed yet."""


class _Node(Generic[S]):
    """A place in the trie; what it does not have is None, never empty."""

    __slots__ = ("anything", "exact", "literals", "prefixes", "subtree")

    def __init__(self) -> None:
        self.literals: dict[bytes, _Node[S]] | None = None
        self.anything: _Node[S] | None = None
        self.prefixes: PrefixTable[_Node[S]] | None = None
        self.exact: dict[S, int] | None = None
        self.subtree: dict[S, int] | None = None

    def is_bare(self) -> bool:
        """Whether nothing depends on this node."""
        return (
            self.literals is None
            and self.anything is None
            and self.prefixes is None
            and self.exact is None
            and self.subtree is None
        )

    def child(self, segment: bytes, wildcard: bool) -> "_Node[S] | None":
        """The child for exactly this pattern segment."""
        if not wildcard:
            return None if self.literals is None else self.literals.get(segment)
        if not segment:
            return self.anything
        return None if self.prefixes is None else self.prefixes.get(segment)

    def make_child(self, segment: bytes, wildcard: bool) -> "_Node[S]":
        """Enter a child that is not there yet."""
        node: _Node[S] = _Node()
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
        return node

    def drop_child(self, segment: bytes, wildcard: bool) -> None:
        """Take out a child that is there."""
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

    def children(self) -> "Iterator[_Node[S]]":
        if self.literals is not None:
            yield from self.literals.values()
        if self.anything is not None:
            yield self.anything
        if self.prefixes is not None:
            yield from self.prefixes.values()


class PatternIndex(Generic[S]):
    """A multiset of (pattern, subscriber), asked by key.

    Invariants: counts are at least 1; no literal's subscribers and no node but the root are empty;
    the three numbers of `statistics()` are what a recount gives.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._separator = dialect.separator
        self._literals: dict[bytes, dict[S, int]] = {}
        self._root: _Node[S] = _Node()
        self._nodes = 1
        self._trie_patterns = 0
        self._subscriptions = 0

    def add(self, path: PatternPath, subscriber: S) -> bool:
        """Add one occurrence; True when it is the subscriber's first one of this path."""
        if path.is_literal:
            subscribers = self._literals.setdefault(self._separator.join(path.segments), {})
        else:
            subscribers = self._trie_subscribers(path)
        count = subscribers.get(subscriber, 0)
        subscribers[subscriber] = count + 1
        self._subscriptions += 1
        return not count

    def remove(self, path: PatternPath, subscriber: S) -> bool:
        """Remove one occurrence; True when it was the subscriber's last one of this path.

        KeyError, and no change, when there is none.
        """
        if path.is_literal:
            key = self._separator.join(path.segments)
            subscribers = self._literals[key]
            was_last = _take_one(subscribers, subscriber)
            if not subscribers:
                del self._literals[key]
                self._literals = self._literals or {}  # an emptied dict keeps its size
        else:
            was_last = self._remove_from_trie(path, subscriber)
        self._subscriptions -= 1
        return was_last

    def match(self, key: bytes) -> set[S]:
        """The subscribers of all patterns that match `key`; the set is the caller's."""
        if RESERVED_SEGMENT in key and is_reserved(key, self._dialect):
            return self._match_reserved(key)
        subscribers = self._literals.get(key)
        found = set() if subscribers is None else set(subscribers)
        _walk(self._root, key.split(self._separator), found)
        return found

    def statistics(self) -> IndexStatistics:
        return IndexStatistics(
            nodes=self._nodes,
            patterns=len(self._literals) + self._trie_patterns,
            subscriptions=self._subscriptions,
        )

    def check_invariants(self) -> None:
        """Recount everything; AssertionError where the invariants do not hold."""
        holders = list(self._literals.values())
        nodes = trie_patterns = 0
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            nodes += 1
            assert node is self._root or not node.is_bare()
            assert node.literals is None or node.literals
            if node.prefixes is not None:
                assert node.prefixes
                node.prefixes.check_invariants()
            here = [held for held in (node.exact, node.subtree) if held is not None]
            trie_patterns += len(here)
            holders.extend(here)
            waiting.extend(node.children())
        assert all(holders)
        assert all(count >= 1 for held in holders for count in held.values())
        assert nodes == self._nodes
        assert trie_patterns == self._trie_patterns
        assert sum(sum(held.values()) for held in holders) == self._subscriptions

    def _match_reserved(self, key: bytes) -> set[S]:
        segments = key.split(self._separator)
        if segments[0] != RESERVED_SEGMENT:
            return set()
        found = set(self._literals.get(key, ()))
        start = self._root.child(RESERVED_SEGMENT, wildcard=False)
        if start is not None:
            _walk(start, segments[1:], found)
        return found

    def _trie_subscribers(self, path: PatternPath) -> dict[S, int]:
        """The subscribers at the end of `path`, made where they are missing."""
        node = self._root
        for segment, wildcard in zip(path.segments, path.wildcards, strict=True):
            child = node.child(segment, wildcard)
            if child is None:
                child = node.make_child(segment, wildcard)
                self._nodes += 1
            node = child
        subscribers = node.subtree if path.subtree else node.exact
        if subscribers is None:
            subscribers = {}
            if path.subtree:
                node.subtree = subscribers
            else:
                node.exact = subscribers
            self._trie_patterns += 1
        return subscribers

    def _remove_from_trie(self, path: PatternPath, subscriber: S) -> bool:
        trail: list[tuple[_Node[S], bytes, bool]] = []
        node = self._root
        for segment, wildcard in zip(path.segments, path.wildcards, strict=True):
            child = node.child(segment, wildcard)
            if child is None:
                raise KeyError(subscriber)
            trail.append((node, segment, wildcard))
            node = child
        subscribers = node.subtree if path.subtree else node.exact
        if subscribers is None:
            raise KeyError(subscriber)
        was_last = _take_one(subscribers, subscriber)
        if not subscribers:
            if path.subtree:
                node.subtree = None
            else:
                node.exact = None
            self._trie_patterns -= 1
            self._prune(node, trail)
        return was_last

    def _prune(self, node: _Node[S], trail: list[tuple[_Node[S], bytes, bool]]) -> None:
        """Take out `node` and the ancestors on `trail` that nothing depends on any more."""
        for parent, segment, wildcard in reversed(trail):
            if not node.is_bare():
                break
            parent.drop_child(segment, wildcard)
            self._nodes -= 1
            node = parent


def _walk(start: _Node[S], segments: list[bytes], found: set[S]) -> None:
    """Add to `found` who subscribed below `start` to what matches `segments`."""
    active = [start]
    for segment in segments:
        following: list[_Node[S]] = []
        for node in active:
            if node.subtree is not None:
                found.update(node.subtree)
            if node.literals is not None:
                child = node.literals.get(segment)
                if child is not None:
                    following.append(child)
            if node.anything is not None:
                following.append(node.anything)
            if node.prefixes is not None:
                node.prefixes.collect(segment, following)
        if not following:
            return
        active = following
    for node in active:
        if node.exact is not None:
            found.update(node.exact)


def _take_one(subscribers: dict[S, int], subscriber: S) -> bool:
    """Remove one occurrence; True when it was the last. KeyError when there is none."""
    count = subscribers[subscriber]
    if count > 1:
        subscribers[subscriber] = count - 1
        return False
    del subscribers[subscriber]
    return True
