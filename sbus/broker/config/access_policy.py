"""Access rules: who may connect, publish, subscribe, and hold other users' publishers back.

Of the rules that concern a peer, a verb and a key, the last one decides; where there is none,
everything is allowed but `block`. A row of rules is a number here, one bit for each, so that "the
last one of those that" is the highest bit of an intersection, whatever the number of rules.

The work is divided as knowledge is. The front knows peers: `PeerRules` tells, once for each
connection, which rules concern a peer. Workers know keys: `KeyRules` tells which rules concern a
key, and remembers it in bounded memory for all of its clients together, because keys are the
clients' bytes. Between them goes the number, as bytes.

Rules with keys never concern a secret message, whose key says itself who may receive it; a rule
without keys concerns every message.

This module does not know how rules are written, nor what a refusal looks like.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

from sbus.protocol.keys import Dialect, PatternPath, is_reserved, parse_pattern
from sbus.routing.index import PatternIndex
from sbus.routing.pattern_sets import contains, overlap
from sbus.routing.route_cache import RouteCache

RULES_MAX: Final = 1_024
"""Rules of one bus: which of them concern a client has to fit the packet that hands it over."""
RULE_KEYS_MAX: Final = 1_024
"""Patterns of all rules together: a client's `SUB` is compared with each, in about 1 us."""

_INT_BYTES: Final = 32
"""A small number of Python's; a large one has an eighth of its bits more."""


class Verb(Enum):
    """What a rule is about."""

    CONNECT = "connect"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    BLOCK = "block"
    """Holding publishers of other users back, by the flood control policy of that name."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. It concerns a peer whose user is in `uids` or that has a group in `gids`."""

    allows: bool
    verbs: frozenset[Verb]
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    """With `uids` empty as well: everybody."""
    patterns: tuple[bytes, ...] = ()
    """None: every key, secret ones included."""


class AccessProfile(msgspec.Struct, frozen=True):
    """What the rules have to say about one client."""

    publish: int
    """The rules about publishing that concern it; 0 when there are none."""
    subscribe: int
    may_block_others: bool
    """Whether its `block` may hold back publishers of other users than its own."""


class PeerRules:
    """The rules, by whom they concern."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.need_groups = any(rule.gids for rule in rules)
        """Whether it makes a difference which groups a peer has."""
        self._allowing = _those(rules, lambda rule: rule.allows)
        self._about_connecting = _about(Verb.CONNECT, rules)
        self._everybody = _those(rules, lambda rule: not rule.uids and not rule.gids)
        self._by_uid: dict[int, int] = {}
        self._by_gid: dict[int, int] = {}
        for number, rule in enumerate(rules):
            for ids, by_id in ((rule.uids, self._by_uid), (rule.gids, self._by_gid)):
                for identity in ids:
                    by_id[identity] = by_id.get(identity, 0) | 1 << number

    def concerning(self, uid: int, groups: frozenset[int]) -> int:
        """The rules that concern a peer of this user and all of these groups."""
        concerning = self._everybody | self._by_uid.get(uid, 0)
        for gid in self._by_gid.keys() & groups:
            concerning |= self._by_gid[gid]
        return concerning

    def connect_denied_by(self, concerning: int) -> int | None:
        """The rule by which a peer that these rules concern may not connect; None: it may."""
        return _last_if_denying(concerning & self._about_connecting, self._allowing)


class KeyRules:
    """The rules, by the keys they concern; which those are is remembered in `cache_bytes_max`."""

    def __init__(self, rules: Sequence[Rule], dialect: Dialect, cache_bytes_max: int) -> None:
        self._dialect = dialect
        self.go_by(rules, cache_bytes_max)

    def go_by(self, rules: Sequence[Rule], cache_bytes_max: int) -> None:
        """Have these rules instead, and forget what was remembered of others."""
        dialect = self._dialect
        self._allowing = _those(rules, lambda rule: rule.allows)
        self._about_publishing = _about(Verb.PUBLISH, rules)
        self._about_subscribing = _about(Verb.SUBSCRIBE, rules)
        self._about_blocking = _about(Verb.BLOCK, rules)
        self._of_every_key = _those(rules, lambda rule: not rule.patterns)
        self._paths = [
            [path for pattern in rule.patterns if (path := parse_pattern(pattern, dialect))]
            for rule in rules
        ]
        self._index: PatternIndex[int] = PatternIndex(dialect)
        for number, paths in enumerate(self._paths):
            for path in paths:
                self._index.add(path, number)
        self._cache: RouteCache[int] = RouteCache(self._find, cache_bytes_max)

    def profile(self, concerning: int) -> AccessProfile:
        """Of the rules that concern a peer, what they are about."""
        about_blocking = concerning & self._about_blocking
        denied = not about_blocking or _last_if_denying(about_blocking, self._allowing) is not None
        return AccessProfile(
            publish=concerning & self._about_publishing,
            subscribe=concerning & self._about_subscribing,
            may_block_others=not denied,
        )

    def publish_denied_by(self, profile: AccessProfile, key: bytes) -> int | None:
        """The rule by which such a client may not publish under `key`; None: it may."""
        return self._denied_by(profile.publish, key)

    def subscribe_key_denied_by(self, profile: AccessProfile, key: bytes) -> int | None:
        """The rule by which such a client receives nothing under `key`; None: it may."""
        return self._denied_by(profile.subscribe, key)

    def lets_through(self, rules: int, key: bytes) -> bool:
        """Whether messages under `key` may be delivered to a client that these rules about
        subscribing concern."""
        return self._denied_by(rules, key) is None

    def subscribe_denied_by(self, profile: AccessProfile, pattern: bytes) -> int | None:
        """A rule by which such a client may receive nothing that `pattern` matches; None: perhaps.

        Rules are compared with the pattern one by one: what only several of them deny together
        is not found here, and is denied message by message.
        """
        rules = profile.subscribe
        path = parse_pattern(pattern, self._dialect)
        if path is None or is_reserved(pattern, self._dialect):
            return _last_if_denying(rules & self._of_every_key, self._allowing)
        while rules:
            last = rules.bit_length() - 1
            allows = self._allowing >> last & 1
            if _concerns(self._paths[last], path, overlap if allows else contains):
                return None if allows else last
            rules ^= 1 << last
        return None

    def _denied_by(self, rules: int, key: bytes) -> int | None:
        if not rules:
            return None
        of_key = self._cache.recent.get(key)
        if of_key is None:
            of_key = self._cache.miss(key)
        return _last_if_denying(rules & of_key, self._allowing)

    def _find(self, key: bytes) -> tuple[int, int]:
        """The rules that concern `key`, and the bytes that the number takes."""
        found = self._of_every_key
        for number in self._index.match(key):
            found |= 1 << number
        return found, _INT_BYTES + found.bit_length() // 8


def _concerns(
    paths: list[PatternPath], pattern: PatternPath, how: Callable[[PatternPath, PatternPath], bool]
) -> bool:
    return not paths or any(how(path, pattern) for path in paths)


def _those(rules: Sequence[Rule], which: Callable[[Rule], bool]) -> int:
    """The number that has a bit for each of these rules."""
    return sum(1 << number for number, rule in enumerate(rules) if which(rule))


def _about(verb: Verb, rules: Sequence[Rule]) -> int:
    return _those(rules, lambda rule: verb in rule.verbs)


def _last_if_denying(rules: int, allowing: int) -> int | None:
    """The last of some rules, when there is one and it denies."""
    last = rules.bit_length() - 1
    return last if last >= 0 and not allowing >> last & 1 else None


def pack(concerning: int) -> bytes:
    """A row of rules as bytes, at most an eighth as many as there are rules."""
    return concerning.to_bytes((concerning.bit_length() + 7) // 8, "little")


def unpack(data: bytes) -> int:
    """The row of rules that `pack` was given."""
    return int.from_bytes(data, "little")
