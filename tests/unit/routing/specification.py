"""The matching rules as docs/protocol.md words them, one regular expression per pattern.

Goes byte by byte and knows nothing of segments, paths or tries, so that it can contradict them.
"""

import re
from functools import lru_cache

from hypothesis import strategies as st

from sbus.protocol.keys import DOT, SLASH, Dialect

dialects = st.sampled_from([SLASH, DOT])

_pieces = st.sampled_from([b"a", b"b", b"*", b"/", b".", b"!", b"\xff"])
_small_texts = st.lists(_pieces, max_size=8).map(b"".join)
_long_texts = st.lists(
    st.one_of(_pieces, st.sampled_from([b"a" * 63, b"a" * 64, b"a" * 65, b"a" * 128])), max_size=5
).map(b"".join)
_deep_segments = st.lists(st.sampled_from([b"a", b"a", b"*", b"*", b"a*", b"aa", b""]), max_size=4)


def _deep_text(begin: list[bytes], repeated: bytes, count: int, end: list[bytes]) -> bytes:
    """Many equal segments between few others, in the slash dialect."""
    return b"/".join([*begin, *[repeated] * count, *end])


_deep_texts = st.builds(
    _deep_text,
    _deep_segments,
    st.sampled_from([b"a", b"*", b"a*"]),
    st.sampled_from([3, 4, 20]),
    _deep_segments,
)
texts = st.one_of(
    _small_texts, _small_texts, _deep_texts, _deep_texts, _long_texts, st.binary(max_size=10)
)
"""Keys and patterns that often share segments and prefixes, deep ones that part late or early,
long ones and any bytes at all."""


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
