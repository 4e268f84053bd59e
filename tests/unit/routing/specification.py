"""The matching rules as docs/protocol.md words them, one regular expression per pattern.

Goes byte by byte and knows nothing of segments, paths or tries, so that it can contradict them.
"""

import re
from functools import lru_cache

from sbus.protocol.keys import DOT, Dialect


def matches(pattern: bytes, key: bytes, dialect: Dialect) -> bool:
    """Whether `pattern` matches `key`."""
    if _is_reserved(key, dialect) and not re.match(
        rb"!(%b|\Z)" % re.escape(dialect.separator), pattern
    ):
        return False
    return matches_as_any_pattern_does(pattern, key, dialect)


def matches_as_any_pattern_does(pattern: bytes, key: bytes, dialect: Dialect) -> bool:
    """Whether `pattern` would match `key` if nothing were reserved."""
    return expression_of(pattern, dialect.separator).fullmatch(key) is not None


def _is_reserved(key: bytes, dialect: Dialect) -> bool:
    """Slash: `!` as a whole segment. Dot: keys that begin with `!`."""
    expression = rb"!" if dialect is DOT else rb"(.*/)?!(/|\Z)"
    return re.match(expression, key, re.DOTALL) is not None


@lru_cache(maxsize=10_000)
def expression_of(pattern: bytes, separator: bytes) -> re.Pattern[bytes]:
    """What the keys look like that `pattern` matches.

    `*` matches to the next separator or the end; a separator at the end matches itself and
    everything after it; the empty pattern matches everything; other bytes match themselves."""
    separator_class = re.escape(separator)
    parts = [
        b"[^%b]*+" % separator_class if byte == ord("*") else re.escape(bytes([byte]))
        for byte in pattern
    ]
    if not pattern or pattern.endswith(separator):
        parts.append(b".*")
    return re.compile(b"".join(parts), re.DOTALL)
