"""The route cache: key to route, bounded in bytes, in two halves, `recent` and `old`.

Keys are the clients' bytes, so memory is what must be bounded. New entries go to `recent`. When
that has used its half of the bound it becomes `old`, and the previous `old` is forgotten. A lookup
moves an entry of `old` to `recent`, so keys in use survive a flood of keys that are used once: the
flood displaces only itself and idle keys.

Callers look in `recent` first. It is one and the same dict for life, so a caller that keeps it sees
every invalidation.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from sbus.protocol.keys import PatternPath

R = TypeVar("R")

ENTRY_OVERHEAD_BYTES: Final = 320
"""Counted for each entry besides its key's length and the bytes from `look_up_uncached`: the header
of the key's object (33), its size (32), and its entries in two dicts that were just resized (up
to 124 each)."""


class CacheStatistics(msgspec.Struct, frozen=True):
    """The size of a cache at one instant, and counts since it was made."""

    entries: int
    bytes: int
    hits_old: int
    """Entries found in `old`; hits in `recent` are not counted."""
    misses: int
    """Lookups of keys that were in neither half; those that raised are not counted."""
    rotations: int
    """Times that `recent` became `old`."""
    invalidations: int
    """Patterns that may have invalidated entries."""


class RouteCache(Generic[R]):
    """Routes by key; a route is never None.

    Invariants: no key is in both halves; the bytes of each are the sum over its entries, and at
    most half of `bytes_max`.
    """

    def __init__(self, look_up_uncached: Callable[[bytes], tuple[R, int]], bytes_max: int) -> None:
        """`look_up_uncached` returns a key's route and the bytes that it needs besides the key."""
        self.recent: dict[bytes, R] = {}
        self._recent_entry_bytes: dict[bytes, int] = {}
        self._recent_bytes = 0
        self._old: dict[bytes, R] = {}
        self._old_entry_bytes: dict[bytes, int] = {}
        self._old_bytes = 0
        self._look_up_uncached = look_up_uncached
        self._half_bytes_max = bytes_max // 2
        self._hits_old = 0
        self.misses = 0
        """Lookups of keys that were in neither half."""
        self._rotations = 0
        self._invalidations = 0

    def look_up(self, key: bytes) -> R:
        """The route of a key that is not in `recent`, where it is kept from now on. An entry larger
        than half the bound is not kept, nor anything when `look_up_uncached` raises."""
        assert key not in self.recent
        route = self._old.pop(key, None)
        if route is not None:
            self._hits_old += 1
            entry_bytes = self._old_entry_bytes.pop(key)
            self._old_bytes -= entry_bytes
        else:
            route, extra_bytes = self._look_up_uncached(key)
            self.misses += 1
            entry_bytes = len(key) + extra_bytes + ENTRY_OVERHEAD_BYTES
            if entry_bytes > self._half_bytes_max:
                return route
        if self._recent_bytes + entry_bytes > self._half_bytes_max:
            self._rotate()
        self.recent[key] = route
        self._recent_entry_bytes[key] = entry_bytes
        self._recent_bytes += entry_bytes
        return route

    def invalidate(self, path: PatternPath | None, pattern: bytes) -> None:
        """Forget the routes that a changed subscription to `pattern`, parsed as `path`, may affect.

        A literal pattern affects the key that is equal to it, a pattern that cannot match (None) no
        key, any other pattern every key.
        """
        if path is None:
            return
        self._invalidations += 1
        if not path.is_literal:
            self.clear()
        elif self.recent.pop(pattern, None) is not None:
            self._recent_bytes -= self._recent_entry_bytes.pop(pattern)
        elif self._old.pop(pattern, None) is not None:
            self._old_bytes -= self._old_entry_bytes.pop(pattern)

    def clear(self) -> None:
        """Forget everything."""
        self.recent.clear()
        self._recent_entry_bytes = {}
        self._recent_bytes = 0
        self._old = {}
        self._old_entry_bytes = {}
        self._old_bytes = 0

    def limit(self, bytes_max: int) -> None:
        """Forget everything, and set another bound."""
        self.clear()
        self._half_bytes_max = bytes_max // 2

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            entries=len(self.recent) + len(self._old),
            bytes=self._recent_bytes + self._old_bytes,
            hits_old=self._hits_old,
            misses=self.misses,
            rotations=self._rotations,
            invalidations=self._invalidations,
        )

    def check_invariants(self) -> None:
        """Recount everything; AssertionError where the invariants do not hold."""
        assert not self.recent.keys() & self._old.keys()
        assert self.recent.keys() == self._recent_entry_bytes.keys()
        assert self._old.keys() == self._old_entry_bytes.keys()
        assert self._recent_bytes == sum(self._recent_entry_bytes.values())
        assert self._old_bytes == sum(self._old_entry_bytes.values())
        assert max(self._recent_bytes, self._old_bytes) <= self._half_bytes_max

    def _rotate(self) -> None:
        self._old = self.recent.copy()
        self._old_entry_bytes = self._recent_entry_bytes
        self._old_bytes = self._recent_bytes
        self.recent.clear()
        self._recent_entry_bytes = {}
        self._recent_bytes = 0
        self._rotations += 1
