"""The pattern index: who subscribed to something that matches a key?

A pattern without wildcards matches one key, so those are a dict by key and cost one lookup however
many there are. The rest are in a trie by segment, which a key is walked through, so that only
patterns that match the key's beginning cost anything.

Reserved keys are different: only a pattern whose first segment is literally `!` matches one.

Does not know clients, rights or limits; a subscriber is whatever hashes.
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
    """Places of the trie where patterns part or end, and its root; patterns without wildcards need
    none, the others at most two each."""
    patterns: int
    """Different paths that somebody subscribed to."""
    subscriptions: int
    """Additions that were not removed yet."""


class PatternIndex(Generic[S]):
    """A multiset of (pattern, subscriber), asked by key.

    Invariants: counts are at least 1; nobody's pattern has no subscribers; the trie holds no path
    that is a literal; `_subscriptions` is the sum of all counts.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._separator = dialect.separator
        self._literals: dict[bytes, dict[S, int]] = {}
        self._trie: PathTrie[S] = PathTrie()
        self._subscriptions = 0

    def add(self, path: PatternPath, subscriber: S) -> bool:
        """Add one occurrence; True when it is the subscriber's first one of this path."""
        if path.is_literal:
            subscribers = self._literals.setdefault(self._separator.join(path.segments), {})
        else:
            subscribers = self._trie.enter(path)
        count = subscribers.get(subscriber, 0)
        subscribers[subscriber] = count + 1
        self._subscriptions += 1
        return not count

    def remove(self, path: PatternPath, subscriber: S) -> bool:
        """Remove one occurrence; True when it was the subscriber's last one of this path.

        KeyError, and no change, when there is none.
        """
        subscribers = self._subscribers(path)
        if subscribers is None:
            raise KeyError(subscriber)
        was_last = _take_one(subscribers, subscriber)
        if not subscribers:
            if path.is_literal:
                del self._literals[self._separator.join(path.segments)]
                self._literals = self._literals or {}  # an emptied dict keeps its size
            else:
                self._trie.remove(path)
        self._subscriptions -= 1
        return was_last

    def match(self, key: bytes) -> set[S]:
        """The subscribers of all patterns that match `key`; the set is the caller's."""
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
        """Who subscribed to exactly this path, with counts; None when nobody did."""
        if path.is_literal:
            return self._literals.get(self._separator.join(path.segments))
        return self._trie.get(path)


def _take_one(subscribers: dict[S, int], subscriber: S) -> bool:
    """Remove one occurrence; True when it was the last. KeyError when there is none."""
    count = subscribers[subscriber]
    if count > 1:
        subscribers[subscriber] = count - 1
        return False
    del subscribers[subscriber]
    return True
