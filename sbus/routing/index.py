"""The pattern index: the subscribers whose patterns match a key.

A pattern without wildcards matches one key; all of these are in a dict and cost one lookup. The
others are in a trie by segment, where only patterns that match the beginning of the key cost
anything.

A reserved key is matched only by patterns whose first segment is literally `!`.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from sbus.protocol.keys import RESERVED_SEGMENT, Dialect, PatternPath, is_reserved
from sbus.routing.path_trie import PathTrie

S = TypeVar("S", bound=Hashable)


class IndexStatistics(msgspec.Struct, frozen=True):
    """Sizes of an index at one instant."""

    nodes: int
    """Nodes of the trie, including its root; a pattern without wildcards needs none, any other at
    most two."""
    patterns: int
    """Different paths that have subscribers."""
    subscriptions: int
    """Additions that have not been removed yet."""


class PatternIndex(Generic[S]):
    """A multiset of (pattern, subscriber), with lookup by key. A subscriber is any hashable.

    Invariants: counts are at least 1; every path has subscribers; no path in the trie is a literal;
    `_subscriptions` is the sum of all counts.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._separator = dialect.separator
        self._literals: dict[bytes, dict[S, int]] = {}
        self._trie: PathTrie[S] = PathTrie()
        self._subscriptions = 0

    def add(self, path: PatternPath, subscriber: S) -> bool:
        """Add one subscription; True when it is the subscriber's first one of this path."""
        if path.is_literal:
            subscribers = self._literals.setdefault(self._separator.join(path.segments), {})
        else:
            subscribers = self._trie.enter(path)
        count = subscribers.get(subscriber, 0)
        subscribers[subscriber] = count + 1
        self._subscriptions += 1
        return not count

    def remove(self, path: PatternPath, subscriber: S) -> bool:
        """Remove one subscription; True when it was the subscriber's last one of this path. Raises
        KeyError, without a change, when there is none."""
        subscribers = self._subscribers(path)
        if subscribers is None:
            raise KeyError(subscriber)
        subscribers[subscriber] -= 1
        was_last = not subscribers[subscriber]
        if was_last:
            del subscribers[subscriber]
        if not subscribers:
            if path.is_literal:
                del self._literals[self._separator.join(path.segments)]
                self._literals = self._literals or {}  # an emptied dict keeps its size
            else:
                self._trie.remove(path)
        self._subscriptions -= 1
        return was_last

    def match(self, key: bytes) -> set[S]:
        """The subscribers of all patterns that match `key`; the caller owns the set."""
        reserved = RESERVED_SEGMENT in key and is_reserved(key, self._dialect)
        segments = key.split(self._separator)
        if reserved and segments[0] != RESERVED_SEGMENT:
            return set()
        subscribers = self._literals.get(key)
        found = set() if subscribers is None else set(subscribers)
        self._trie.collect(segments, found, reserved)
        return found

    def statistics(self) -> IndexStatistics:
        return IndexStatistics(
            nodes=self._trie.nodes,
            patterns=len(self._literals) + self._trie.paths,
            subscriptions=self._subscriptions,
        )

    def check_invariants(self) -> None:
        """Recount everything; AssertionError where the invariants do not hold."""
        self._trie.check_invariants()
        holders = [*self._literals.values(), *self._trie.values()]
        assert all(holders)
        assert all(count >= 1 for held in holders for count in held.values())
        assert sum(sum(held.values()) for held in holders) == self._subscriptions

    def _subscribers(self, path: PatternPath) -> dict[S, int] | None:
        """The subscribers of exactly this path, with counts, or None."""
        if path.is_literal:
            return self._literals.get(self._separator.join(path.segments))
        return self._trie.get(path)
