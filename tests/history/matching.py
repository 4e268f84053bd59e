"""Which keys a client's pattern matches, and which secret patterns it may have."""

import re
from functools import lru_cache

from sbus.protocol.keys import DIALECTS
from tests.unit.routing.specification import matches, matches_as_any_pattern_does

_SECRET = re.compile(rb"!/cred/(\d*)/(\d*)/(\d*)/(.*)", re.DOTALL)

Ids = tuple[bytes, bytes, bytes]
"""Group, user and process, as keys spell them."""


@lru_cache(100_000)
def is_for(pattern: bytes, key: bytes, ids: Ids, dialect: str) -> bool:
    """Whether a pattern of a client with these ids matches a key. Each id in a secret key has to be
    the client's own, and each id in a secret pattern has to be in the key."""
    secret = _SECRET.fullmatch(key) if dialect == "slash" else None
    if secret is None:
        return matches(pattern, key, DIALECTS[dialect])
    wanted = _SECRET.fullmatch(pattern)
    if wanted is None:
        return False
    for own, named, asked in zip(ids, secret.groups(), wanted.groups(), strict=False):
        if named not in (own, b"") or asked not in (b"", named):
            return False
    return matches_as_any_pattern_does(wanted[4], secret[4], DIALECTS[dialect])


def names_another(pattern: bytes, own: Ids) -> bool:
    """Whether a pattern is secret and names an id that is not among a client's own."""
    ids = _SECRET.fullmatch(pattern)
    return ids is not None and any(
        named not in (b"", mine) for named, mine in zip(ids.groups(), own, strict=False)
    )
