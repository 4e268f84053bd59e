"""The route cache: never stale, never beyond its bound, kind to keys in use."""

import tracemalloc

import pytest

from sbus.protocol.keys import SLASH, parse_pattern
from sbus.routing.route_cache import ENTRY_OVERHEAD_BYTES, CacheStatistics, RouteCache


class Resolver:
    """Routes that say when they were resolved; counts how often it was asked."""

    def __init__(self, extra_bytes: int = 0) -> None:
        self.extra_bytes = extra_bytes
        self.asked: list[bytes] = []
        self.version = 0

    def __call__(self, key: bytes) -> tuple[tuple[bytes, int], int]:
        self.asked.append(key)
        return (key, self.version), self.extra_bytes


Cache = RouteCache[tuple[bytes, int]]


def room_for(entries: int, key_bytes: int = 1) -> int:
    """The bound of a cache whose halves hold so many entries each."""
    return 2 * entries * (key_bytes + ENTRY_OVERHEAD_BYTES)


def look_up(cache: Cache, key: bytes) -> tuple[bytes, int]:
    """A lookup as its users do it."""
    route = cache.recent.get(key)
    return cache.look_up(key) if route is None else route


def invalidate(cache: Cache, pattern: bytes) -> None:
    cache.invalidate(parse_pattern(pattern, SLASH), pattern)


def test_a_key_is_resolved_once() -> None:
    resolver = Resolver()
    cache = RouteCache(resolver, room_for(4))
    for _ in range(3):
        assert look_up(cache, b"a") == (b"a", 0)
    assert resolver.asked == [b"a"]
    assert cache.statistics() == CacheStatistics(
        entries=1,
        bytes=1 + ENTRY_OVERHEAD_BYTES,
        hits_old=0,
        misses=1,
        rotations=0,
        invalidations=0,
    )


def test_the_cost_from_resolve_is_charged() -> None:
    cache = RouteCache(Resolver(extra_bytes=100), 10_000)
    look_up(cache, b"abcde")
    assert cache.statistics().bytes == 5 + 100 + ENTRY_OVERHEAD_BYTES


def test_a_flood_of_new_keys_does_not_evict_a_key_in_use() -> None:
    resolver = Resolver()
    cache = RouteCache(resolver, room_for(10, key_bytes=5))
    for number in range(1_000):
        look_up(cache, b"%05d" % number)
        if number % 9 == 0:
            look_up(cache, b"inuse")
    assert resolver.asked.count(b"inuse") == 1


def test_an_entry_of_half_the_bound_is_kept_and_a_larger_one_is_not() -> None:
    extra_bytes = 1_000
    half = 1 + extra_bytes + ENTRY_OVERHEAD_BYTES
    for bytes_max, kept in ((2 * half, 1), (2 * half - 1, 0)):
        cache = RouteCache(Resolver(extra_bytes), bytes_max)
        assert look_up(cache, b"a") == (b"a", 0)
        assert cache.statistics().entries == kept


def test_an_entry_that_is_not_kept_evicts_nothing() -> None:
    resolver = Resolver()
    cache = RouteCache(resolver, room_for(2))
    look_up(cache, b"a")
    resolver.extra_bytes = 10_000
    look_up(cache, b"b")
    assert set(cache.recent) == {b"a"}
    assert cache.statistics().rotations == 0


@pytest.mark.parametrize("key", [b"a", b"c"], ids=["old", "recent"])
def test_a_literal_pattern_makes_its_own_key_forgotten_only(key: bytes) -> None:
    resolver = Resolver()
    cache = RouteCache(resolver, room_for(2))
    for known in (b"a", b"b", b"c"):
        look_up(cache, known)
    resolver.version = 1
    invalidate(cache, key)
    cache.check_invariants()
    versions = {known: look_up(cache, known)[1] for known in (b"a", b"b", b"c")}
    assert versions == {known: int(known == key) for known in (b"a", b"b", b"c")}


def test_a_pattern_that_matches_nothing_makes_nothing_forgotten() -> None:
    cache = RouteCache(Resolver(), room_for(2))
    look_up(cache, b"a")
    invalidate(cache, b"a*b")
    assert set(cache.recent) == {b"a"}
    assert cache.statistics().invalidations == 0


def test_a_caller_that_keeps_the_recent_entries_sees_every_change() -> None:
    cache = RouteCache(Resolver(), room_for(2))
    held = cache.recent
    for key in (b"a", b"b", b"c"):
        look_up(cache, key)
    assert set(held) == {b"c"}
    invalidate(cache, b"*")
    assert held == {}
    look_up(cache, b"d")
    assert cache.recent is held


@pytest.mark.parametrize("key_bytes", [8, 200])
def test_real_memory_stays_within_the_bound(key_bytes: int) -> None:
    route = (1, 0)
    bytes_max = 1_000_000
    cache = RouteCache(lambda _key: (route, 0), bytes_max)
    tracemalloc.start()
    try:
        for number in range(10_000):
            cache.look_up(b"%0*d" % (key_bytes, number))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.statistics().rotations > 2
    assert peak_bytes < bytes_max
