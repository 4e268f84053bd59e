"""Which clients must receive a message, which may, and which must not.

Written from docs/protocol.md, with one regular expression for each pattern. In the round of a
message, a client has some patterns all the time and others for a part of it: by the former it must
receive the message, by the latter it may.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from sbus.protocol.keys import Dialect
from tests.fuzz.access_model import AccessModel
from tests.fuzz.client_model import Ids
from tests.fuzz.names_model import PRESENCE
from tests.fuzz.verdicts import is_reserved
from tests.unit.routing.specification import expression_of

_SECRET = re.compile(rb"!/cred/([^/]*)/([^/]*)/([^/]*)/(.*)", re.DOTALL)


class Subscriber(Protocol):
    """A client, as far as it concerns what it receives."""

    own: Ids
    lasting: set[bytes]
    any_pattern: set[bytes]
    access: AccessModel | None


class Recipients(NamedTuple):
    """Of a message, as indexes of subscribers."""

    must: tuple[int, ...]
    may: tuple[int, ...]


class ReferenceMatcher:
    """The recipients of messages during one round."""

    def __init__(self, subscribers: Sequence[Subscriber], dialect: Dialect) -> None:
        self._subscribers = subscribers
        self._dialect = dialect
        patterns = {pattern for it in subscribers for pattern in it.any_pattern}
        reserved = {it for it in patterns if is_reserved(it, dialect)}
        self._of_names = self._compiled(it for it in reserved if it.startswith(PRESENCE))
        self._secret = {it for it in reserved if not it.startswith(PRESENCE)}
        self._open = self._compiled(patterns - reserved)
        self._found: dict[bytes, Recipients] = {}

    def _compiled(self, patterns: Iterable[bytes]) -> list[tuple[bytes, Callable[[bytes], object]]]:
        return [(it, expression_of(it, self._dialect.separator).fullmatch) for it in patterns]

    def recipients(self, key: bytes) -> Recipients:
        """The recipients of messages under this key, without regard to `echo`."""
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find(key)
        return found

    def _find(self, key: bytes) -> Recipients:
        tells_of_name = key.startswith(PRESENCE)
        if is_reserved(key, self._dialect) and not tells_of_name:
            return self._find_secret(key)
        patterns = self._of_names if tells_of_name else self._open
        matching = {pattern for pattern, fullmatch in patterns if fullmatch(key)}
        return self._select(key, lambda _: matching)

    def _find_secret(self, key: bytes) -> Recipients:
        def matching(subscriber: Subscriber) -> Iterable[bytes]:
            return [it for it in self._secret if _matches_secret(it, key, subscriber.own)]

        return self._select(key, matching)

    def _select(self, key: bytes, matching: Callable[[Subscriber], Iterable[bytes]]) -> Recipients:
        must: list[int] = []
        may: list[int] = []
        for number, it in enumerate(self._subscribers):
            patterns = matching(it)
            if it.any_pattern.isdisjoint(patterns):
                continue
            if it.access is not None and not it.access.allows("subscribe", key):
                continue
            (may if it.lasting.isdisjoint(patterns) else must).append(number)
        return Recipients(tuple(must), tuple(may))


def _matches_secret(pattern: bytes, key: bytes, own: Ids) -> bool:
    """The table of "Secret messages": an id that the pattern names has to be named, one that it
    leaves empty may be, and what is named is the client's own."""
    (*wanted, pattern_rest), (*named, rest) = _parts(pattern), _parts(key)
    if not all(name in (b"", mine) for name, mine in zip(named, own, strict=True)):
        return False
    if not all(want in (b"", name) for want, name in zip(wanted, named, strict=True)):
        return False
    return expression_of(pattern_rest, b"/").fullmatch(rest) is not None


@lru_cache(10_000)
def _parts(text: bytes) -> tuple[bytes, ...]:
    """The ids of a secret key or pattern, and the rest."""
    parts = _SECRET.fullmatch(text)
    assert parts is not None
    return parts.groups()
