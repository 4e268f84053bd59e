"""Packets through the parser, the checks of keys and patterns, the index and the route cache.

Each packet is parsed as both dialects read it; whatever is cut from it is judged, subscribed to,
matched and taken back, whether or not the bus would accept it. The judge is `verdicts`, matching is
compared with the regular expressions of the specification.
"""

import random
from collections import Counter, deque

from sbus.errors import ClientFault, Misbehaviour, Refusal
from sbus.limits import Limits
from sbus.protocol.keys import (
    DOT,
    SLASH,
    Dialect,
    PatternPath,
    check_key,
    check_pattern,
    parse_pattern,
)
from sbus.protocol.packets import Control, Publish, Subscribe, parse_client_packet
from sbus.routing.index import PatternIndex
from sbus.routing.route_cache import RouteCache
from tests.history.verdicts import documented_codes, judge_form
from tests.unit.routing.specification import matches

PATTERNS_MAX = 150
SUBSCRIBERS = 5
PACKETS_PER_CHECK = 2_000
PACKETS_PER_COMPARISON = 25
FAULTS = {"refused": Refusal, "disconnected": Misbehaviour}


class Parts:
    """The pure parts in one dialect, with as many patterns as a small bus has."""

    def __init__(self, seed: int, dialect: Dialect, limits: Limits) -> None:
        self._chance = random.Random(seed)
        self._dialect = dialect
        self._limits = limits
        self._index: PatternIndex[int] = PatternIndex(dialect)
        self._cache: RouteCache[frozenset[int]] = RouteCache(self._look_up_uncached, 64 * 1024)
        self._held: deque[tuple[bytes, PatternPath, int]] = deque()
        self._packets = 0
        self.counts: Counter[str] = Counter()
        """Verdicts by code."""

    def _look_up_uncached(self, key: bytes) -> tuple[frozenset[int], int]:
        return frozenset(self._index.match(key)), 0

    def take(self, packet: bytes) -> None:
        """Let one packet through; AssertionError where anything is not as it must be."""
        self._packets += 1
        verdict = judge_form(packet, self._dialect, self._limits)
        found, text = self._outcome(packet)
        assert found == verdict.code, f"{found!r}, where {verdict.code!r} was due"
        assert text is None or text == verdict.text, f"{text!r} was cut out"
        self.counts[found or "accepted"] += 1
        if verdict.word in (b"SUB", b"UNSUB"):
            self._change(verdict.text)
        elif verdict.word:
            self._match(verdict.text)
        if not self._packets % PACKETS_PER_CHECK:
            self.check()

    def _outcome(self, packet: bytes) -> tuple[str, bytes | None]:
        """The code that comes out, "" for none, and the key or pattern that was cut from it."""
        text = None
        try:
            what = parse_client_packet(packet, self._dialect)
            if isinstance(what, Publish):
                assert what.packet == packet
                text = what.key
                check_key(text, self._dialect, self._limits)
            elif isinstance(what, Control):
                text = what.key
            else:
                text = what.pattern
                assert isinstance(what, Subscribe) == packet.startswith(b"SUB ")
                check_pattern(text, self._dialect, self._limits)
        except ClientFault as fault:
            if type(fault) is not FAULTS[documented_codes()[fault.code]] or not fault.text:
                raise AssertionError(f"a fault unlike its description: {fault!r}") from fault
            return fault.code, text
        return "", text

    def _change(self, pattern: bytes) -> None:
        path = parse_pattern(pattern, self._dialect)
        if path is None:
            return
        subscriber = self._chance.randrange(SUBSCRIBERS)
        self._held.append((pattern, path, subscriber))
        if self._index.add(path, subscriber):
            self._cache.invalidate(path, pattern)
        if len(self._held) > PATTERNS_MAX:
            self._take_back()

    def _take_back(self) -> None:
        pattern, path, subscriber = self._held.popleft()
        if self._index.remove(path, subscriber):
            self._cache.invalidate(path, pattern)

    def _match(self, key: bytes) -> None:
        route = self._cache.recent.get(key)
        route = self._cache.look_up(key) if route is None else route
        if not self._packets % PACKETS_PER_COMPARISON:
            due = {
                subscriber
                for pattern, _, subscriber in self._held
                if matches(pattern, key, self._dialect)
            }
            assert route == due, f"{key!r} goes to {set(route)}, not {due}"

    def check(self) -> None:
        self._index.check_invariants()
        self._cache.check_invariants()
        assert self._index.statistics().subscriptions == len(self._held)

    def end(self) -> None:
        """Take everything back: nothing may be left."""
        while self._held:
            self._take_back()
        self.check()
        assert self._index.statistics().nodes == 1


def both_dialects(seed: int, limits: Limits) -> list[Parts]:
    return [Parts(seed, dialect, limits) for dialect in (SLASH, DOT)]
