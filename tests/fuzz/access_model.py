"""Random access rules, and what they say, as docs/configuration.md has it.

A pattern is taken apart into segments, each a text and whether a star follows, and whether anything
may follow after them; nothing here knows tries or sets of rules.
"""

import json
import random
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from sbus.protocol.keys import DIALECTS
from tests.history.names import PRESENCE
from tests.history.verdicts import is_reserved
from tests.unit.routing.specification import matches

_SEGMENTS = ["a", "b", "c", "ab", "abc", "", "*", "a*", "ab*", "0"]
_NAMES = ["*/*", "*/a*", "*/ab", "70001/*", "70002/a", "70003/a*"]
_RULES = 7
_KNOWN_MAX = 20_000
"""Decisions that are remembered, of one user."""


class User(NamedTuple):
    uid: int
    gid: int


class Rule(NamedTuple):
    allows: bool
    permissions: tuple[str, ...]
    users: tuple[int, ...]
    groups: tuple[int, ...]
    keys: tuple[bytes, ...]
    """Empty: every key."""

    def concerns(self, user: User) -> bool:
        everybody = not self.users and not self.groups
        return everybody or user.uid in self.users or user.gid in self.groups

    def toml(self) -> str:
        lists = {
            "allow" if self.allows else "deny": self.permissions,
            "users": self.users,
            "groups": self.groups,
            "keys": [key.decode() for key in self.keys],
        }
        lines = [f"{name} = {json.dumps(values)}" for name, values in lists.items() if values]
        return "\n".join(["[[rules]]", *lines, ""])


def random_rules(
    chance: random.Random, users: Sequence[User], dialect: str, spared: bytes
) -> list[Rule]:
    """Rules for some of these users; everybody may do everything with the keys below `spared`."""
    separator = DIALECTS[dialect].separator.decode()
    rules = []
    for _ in range(_RULES):
        chosen = chance.sample(users, 3)
        texts = {
            separator.join(chance.choices(_SEGMENTS, k=chance.randint(1, 3)))
            for _ in range(chance.randint(1, 3))
        }
        if dialect == "slash" and chance.random() < 0.4:
            texts.add(PRESENCE.decode() + chance.choice(_NAMES))
        permissions = chance.choice([("publish",), ("subscribe",), ("publish", "subscribe")])
        # A rule without keys concerns secret messages, too, which some are to be allowed.
        keys = () if permissions == ("publish",) and chance.random() < 0.3 else sorted(texts)
        rules.append(
            Rule(
                allows=chance.random() < 0.4,
                permissions=permissions,
                users=tuple(user.uid for user in chosen[:2]),
                groups=(chosen[2].gid,) if chance.random() < 0.3 else (),
                keys=tuple(text.encode() for text in keys),
            )
        )
    return [*rules, Rule(True, ("publish", "subscribe"), (), (), (spared,))]


class AccessModel:
    """What the rules say about the clients of one user."""

    def __init__(self, rules: Sequence[Rule], user: User, dialect: str) -> None:
        self._rules = [rule for rule in reversed(rules) if rule.concerns(user)]
        self._dialect = DIALECTS[dialect]
        self._known: dict[tuple[str, bytes], bool] = {}

    def allows(self, permission: str, key: bytes) -> bool:
        """Whether the last rule that applies to this key, if there is one, allows it."""
        known = self._known.get((permission, key))
        if known is None:
            if len(self._known) > _KNOWN_MAX:
                self._known.clear()
            known = self._known[permission, key] = self._decide(permission, key)
        return known

    def _decide(self, permission: str, key: bytes) -> bool:
        is_secret = is_reserved(key, self._dialect) and not key.startswith(PRESENCE)
        for rule in self._rules:
            if permission in rule.permissions and (
                not rule.keys
                or (not is_secret and any(matches(it, key, self._dialect) for it in rule.keys))
            ):
                return rule.allows
        return True

    def refuses_pattern(self, pattern: bytes) -> bool:
        """Whether single rules show that a client with this pattern would receive nothing."""
        of_names = pattern.startswith(PRESENCE)
        is_secret = is_reserved(pattern, self._dialect) and not of_names
        if is_secret or self._matches_nothing(pattern):
            return False
        for rule in self._rules:
            if "subscribe" in rule.permissions:
                compare = self._meet if rule.allows else self._contains
                keys = [it for it in rule.keys if it.startswith(PRESENCE) == of_names]
                if not rule.keys or any(compare(own, pattern) for own in keys):
                    return not rule.allows
        return False

    def _split(self, pattern: bytes) -> tuple[list[bytes], bool]:
        """The segments of a pattern, and whether more segments may follow them."""
        segments = pattern.split(self._dialect.separator)
        return (segments, False) if segments[-1] else (segments[:-1], True)

    def _matches_nothing(self, pattern: bytes) -> bool:
        return any(b"*" in it.rstrip(b"*") for it in pattern.split(self._dialect.separator))

    def _meet(self, one: bytes, other: bytes) -> bool:
        """Whether some key matches both patterns."""
        (left, left_open), (right, right_open) = self._split(one), self._split(other)
        common = min(len(left), len(right))
        fits = (
            (len(left) == len(right) and left_open == right_open)
            or (left_open and len(right) + right_open > len(left))
            or (right_open and len(left) + left_open > len(right))
        )
        return fits and all(map(_segments_meet, left[:common], right[:common]))

    def _contains(self, outer: bytes, inner: bytes) -> bool:
        """Whether every key that matches `inner` matches `outer`."""
        (left, left_open), (right, right_open) = self._split(outer), self._split(inner)
        if left_open:
            fits = len(right) + right_open > len(left)
        else:
            fits = len(left) == len(right) and not right_open
        return fits and all(
            _segment_contains(a, b) for a, b in zip_longest(left, right) if a is not None
        )


def _segments_meet(one: bytes, other: bytes) -> bool:
    if one.endswith(b"*") and other.endswith(b"*"):
        a, b = one.rstrip(b"*"), other.rstrip(b"*")
        return a.startswith(b) or b.startswith(a)
    return _segment_contains(one, other) or _segment_contains(other, one)


def _segment_contains(outer: bytes, inner: bytes) -> bool:
    if not outer.endswith(b"*"):
        return outer == inner
    return inner.rstrip(b"*").startswith(outer.rstrip(b"*"))
