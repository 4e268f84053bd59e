"""Whether a key matches one of some patterns, for clients that sort received messages.

The bus uses `sbus.routing`, which finds the patterns of many clients at once.
"""

import re
from collections.abc import Callable, Iterable

from sbus.protocol.keys import RESERVED_SEGMENT, Dialect, PatternPath, parse_pattern
from sbus.protocol.secret_keys import widened

_NOTHING = b"(?!)"
"""An expression that matches no key."""


def compile_patterns(
    patterns: Iterable[bytes], dialect: Dialect
) -> Callable[[bytes], object | None]:
    """A function that returns something true for the keys that match one of these patterns."""
    expressions = [_expression(pattern, dialect) for pattern in patterns] or [_NOTHING]
    return re.compile(b"|".join(expressions), re.DOTALL).fullmatch


def _expression(pattern: bytes, dialect: Dialect) -> bytes:
    if dialect.has_control_messages:
        pattern = widened(pattern)
    path = parse_pattern(pattern, dialect)
    if path is None:
        return _NOTHING
    separator = re.escape(dialect.separator)
    rest_of_segment = b"[^%b]*" % separator
    texts = [
        re.escape(text) + rest_of_segment if wildcard else re.escape(text)
        for text, wildcard in zip(path.segments, path.wildcards, strict=True)
    ]
    if path.subtree:
        texts.append(b".*")
    return b"(?:%b%b)" % (_guard(path, dialect), separator.join(texts))


def _guard(path: PatternPath, dialect: Dialect) -> bytes:
    """What keeps a pattern from reserved keys, unless it is for them (`keys.is_reserved`)."""
    if path.segments[:1] == (RESERVED_SEGMENT,) and not path.wildcards[0]:
        return b""
    return b"(?!(?:.*/)?!(?:/|\\Z))" if dialect.has_control_messages else b"(?!!)"


def covers(wide: PatternPath, narrow: PatternPath) -> bool:
    """Whether `wide` matches every key that `narrow` matches. Both are of patterns that match some
    key, and neither is reserved."""
    if narrow.subtree and not wide.subtree:
        return False
    depth = len(wide.segments)
    if len(narrow.segments) < depth + (wide.subtree and not narrow.subtree):
        return False
    if not wide.subtree and len(narrow.segments) > depth:
        return False
    return all(
        text.startswith(outer) if star else text == outer and not narrow_star
        for outer, star, text, narrow_star in zip(
            wide.segments, wide.wildcards, narrow.segments, narrow.wildcards, strict=False
        )
    )
