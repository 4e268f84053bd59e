"""Which clients must receive a message, which may, and which must not.

Written from docs/protocol.md, with one regular expression for each pattern. In the round of a
message, a client has some patterns all the time and others for a part of it: by the former it must
receive the message, by the latter it may.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from sbus.protocol.keys import Dialect
from tests.fuzz.access_model import AccessModel
from tests.history.matching import Ids, is_for
from tests.history.names import PRESENCE
from tests.history.verdicts import is_reserved
from tests.unit.routing.specification import expression_of


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
            return [it for it in self._secret if is_for(it, key, subscriber.own, "slash")]

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
