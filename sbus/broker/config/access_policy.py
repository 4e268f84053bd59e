"""Access rules: who may connect, publish, subscribe, and hold other users' publishers back.

Of the rules that apply to a peer, a permission and a key, the last one decides. Where none applies,
everything is allowed except `block`. A set of rules is an int with one bit for each rule, so the
last rule of an intersection is its highest bit, however many rules there are.

The front knows peers: once for each connection, `PeerRules` finds the rules that apply to the peer.
Workers know keys: `KeyRules` finds the rules that apply to a key. It caches them in bounded memory
for all clients together, because clients choose the keys. The front hands the set of a peer's rules
to the worker, encoded as bytes.

A rule may name users or groups that are not found yet, as when the host starts before its directory
of users. It allows nobody anything because of such a name. If it denies, it applies to every id
that the host's own files do not name, because each may turn out to be the one that is meant.

Rules with keys never apply to secret messages, whose keys name their recipients. To messages that
tell of names apply those with presence keys. Rules without keys apply to every message.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from sbus.protocol.keys import Dialect, is_reserved, parse_pattern
from sbus.routing.index import PatternIndex
from sbus.routing.pattern_sets import contains, overlap
from sbus.routing.route_cache import RouteCache

RULES_MAX: Final = 1_024
"""Rules of one bus: the set of those that apply to a client has to fit the packet that hands the
client over."""
RULE_KEYS_MAX: Final = 1_024
"""Patterns of all rules together: a client's `SUB` is compared with each, in about 1 us."""

_INT_BYTES: Final = 32
"""Size of a small Python int; a large one has an eighth of its bits more."""

RuleSet: TypeAlias = int
"""Bit N stands for the rule at index N."""


class Permission(Enum):
    """What a rule allows or denies."""

    CONNECT = "connect"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    BLOCK = "block"
    """Holding publishers of other users back, by the flood control policy of that name."""


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """Applies to peers whose user is in `uids` or that have a group in `gids`."""

    allows: bool
    permissions: frozenset[Permission]
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    local_uids: frozenset[int] | None = None
    """Not None: users of the rule are not found yet, and are none of these."""
    local_gids: frozenset[int] | None = None
    """The same of groups."""
    patterns: tuple[bytes, ...] = ()
    """Empty: the rule applies to every key, secret ones included."""

    @property
    def names_groups(self) -> bool:
        return bool(self.gids) or self.local_gids is not None

    @property
    def is_for_everybody(self) -> bool:
        return not self.uids and self.local_uids is None and not self.names_groups


class AccessProfile(msgspec.Struct, frozen=True):
    """What the rules say about one client."""

    publish: RuleSet
    """The rules about publishing that apply to the client."""
    subscribe: RuleSet
    may_block_others: bool
    """Whether its `block` may hold back publishers of other users than its own."""


class PeerRules:
    """The rules by the peers that they apply to."""

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        self.depend_on_groups = any(rule.names_groups for rule in rules)
        self._allowing = _rule_set(rules, lambda rule: rule.allows)
        self._about_connecting = _about(Permission.CONNECT, rules)
        self._for_everybody = _rule_set(rules, lambda rule: rule.is_for_everybody)
        self._with_missing_names = [
            (1 << number, rule.local_uids, rule.local_gids)
            for number, rule in enumerate(rules)
            if not rule.allows and (rule.local_uids is not None or rule.local_gids is not None)
        ]
        self._by_uid: dict[int, RuleSet] = {}
        self._by_gid: dict[int, RuleSet] = {}
        for number, rule in enumerate(rules):
            for ids, by_id in ((rule.uids, self._by_uid), (rule.gids, self._by_gid)):
                for identity in ids:
                    by_id[identity] = by_id.get(identity, 0) | 1 << number

    def rules_for(self, uid: int, groups: frozenset[int]) -> RuleSet:
        """The rules that apply to a peer of this user and all of these groups."""
        found = self._for_everybody | self._by_uid.get(uid, 0)
        for gid in self._by_gid.keys() & groups:
            found |= self._by_gid[gid]
        for rule, local_uids, local_gids in self._with_missing_names:
            may_be_user = local_uids is not None and uid not in local_uids
            if may_be_user or (local_gids is not None and not groups <= local_gids):
                found |= rule
        return found

    def connect_denied_by(self, rules: RuleSet) -> int | None:
        """The rule that denies the connection of a peer with these rules; None: it may connect."""
        return _last_if_denying(rules & self._about_connecting, self._allowing)


class KeyRules:
    """The rules by the keys that they apply to, cached in at most `cache_bytes_max`."""

    def __init__(self, rules: Sequence[AccessRule], dialect: Dialect, cache_bytes_max: int) -> None:
        self._dialect = dialect
        self.replace(rules, cache_bytes_max)

    def replace(self, rules: Sequence[AccessRule], cache_bytes_max: int) -> None:
        """Apply these rules from now on, with an empty cache."""
        dialect = self._dialect
        self._allowing = _rule_set(rules, lambda rule: rule.allows)
        self._about_publishing = _about(Permission.PUBLISH, rules)
        self._about_subscribing = _about(Permission.SUBSCRIBE, rules)
        self._about_blocking = _about(Permission.BLOCK, rules)
        self._without_patterns = _rule_set(rules, lambda rule: not rule.patterns)
        self._paths = [
            [
                (path, is_reserved(pattern, dialect))
                for pattern in rule.patterns
                if (path := parse_pattern(pattern, dialect))
            ]
            for rule in rules
        ]
        self._index: PatternIndex[int] = PatternIndex(dialect)
        for number, paths in enumerate(self._paths):
            for path, _ in paths:
                self._index.add(path, number)
        self._cache: RouteCache[RuleSet] = RouteCache(self._find, cache_bytes_max)

    def profile(self, rules: RuleSet) -> AccessProfile:
        """What these rules, which apply to one client, say about it."""
        about_blocking = rules & self._about_blocking
        denied = not about_blocking or _last_if_denying(about_blocking, self._allowing) is not None
        return AccessProfile(
            publish=rules & self._about_publishing,
            subscribe=rules & self._about_subscribing,
            may_block_others=not denied,
        )

    def denied_by(self, rules: RuleSet, key: bytes) -> int | None:
        """The one of these rules that denies a client what they are about, under `key`; None: the
        client may do that."""
        if not rules:
            return None
        of_key = self._cache.recent.get(key)
        if of_key is None:
            of_key = self._cache.look_up(key)
        return _last_if_denying(rules & of_key, self._allowing)

    def may_receive(self, rules: RuleSet, key: bytes) -> bool:
        """Whether a client with these rules about subscribing may receive messages under `key`."""
        return self.denied_by(rules, key) is None

    def subscribe_denied_by(self, profile: AccessProfile, pattern: bytes) -> int | None:
        """A rule that denies everything that `pattern` matches; None if there is no single one.
        Only single rules are compared with the pattern. Messages that several rules deny together
        are denied one by one."""
        rules = profile.subscribe
        path = parse_pattern(pattern, self._dialect)
        if path is None:
            return _last_if_denying(rules & self._without_patterns, self._allowing)
        matches_reserved = is_reserved(pattern, self._dialect)
        while rules:
            last = rules.bit_length() - 1
            allows = self._allowing >> last & 1
            compare = overlap if allows else contains
            if self._without_patterns >> last & 1 or any(
                of_reserved == matches_reserved and compare(own, path)
                for own, of_reserved in self._paths[last]
            ):
                return None if allows else last
            rules ^= 1 << last
        return None

    def _find(self, key: bytes) -> tuple[RuleSet, int]:
        """The rules that apply to `key`, and the bytes that the set takes in the cache."""
        found = self._without_patterns
        for number in self._index.match(key):
            found |= 1 << number
        return found, _INT_BYTES + found.bit_length() // 8


def _rule_set(rules: Sequence[AccessRule], belongs: Callable[[AccessRule], bool]) -> RuleSet:
    return sum(1 << number for number, rule in enumerate(rules) if belongs(rule))


def _about(permission: Permission, rules: Sequence[AccessRule]) -> RuleSet:
    return _rule_set(rules, lambda rule: permission in rule.permissions)


def _last_if_denying(rules: RuleSet, allowing: RuleSet) -> int | None:
    """The last of `rules`, if there is one and it denies."""
    last = rules.bit_length() - 1
    return last if last >= 0 and not allowing >> last & 1 else None


def encode_rule_set(rules: RuleSet) -> bytes:
    """A set of rules as bytes: one for every eight rules that the bus has, at most."""
    return rules.to_bytes((rules.bit_length() + 7) // 8, "little")


def decode_rule_set(data: bytes) -> RuleSet:
    return int.from_bytes(data, "little")
