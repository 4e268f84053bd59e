"""Routing keys and patterns: their segments, their limits, and which are reserved.

A key is a sequence of segments between separators, and each of its bytes stands for itself. In a
pattern a segment is a literal, or a literal prefix before a `*`, which matches the rest of that
segment; a separator at the end of a pattern matches itself and everything after it. So
`PatternPath` describes a pattern completely, and matching goes segment by segment.

The only reserved keys that clients publish with are the secret ones (`secret_keys.py`); they
subscribe to presence keys as well (`presence_keys.py`). A key never contains a NUL,
because packets are cut there.
"""

from typing import Final

import msgspec

from sbus.errors import Misbehaviour, Refusal
from sbus.limits import Limits
from sbus.protocol.presence_keys import begins_presence, check_presence_pattern
from sbus.protocol.secret_keys import begins_secret, check_secret_pattern, is_secret_key

RESERVED_SEGMENT: Final = b"!"
"""In the slash dialect, the reserved segment; in the dot dialect, the first byte of a reserved
key."""


class Dialect(msgspec.Struct, frozen=True):
    """One of the two ways to write keys (docs/protocol.md, "Keys and patterns").

    `separator` is one byte; `has_control_messages` says whether it has `CMSG` packets.
    """

    name: str
    separator: bytes
    has_control_messages: bool


SLASH: Final = Dialect("slash", b"/", True)
DOT: Final = Dialect("dot", b".", False)
DIALECTS: Final = {dialect.name: dialect for dialect in (SLASH, DOT)}


class PatternPath(msgspec.Struct, frozen=True):
    """A parsed pattern; two patterns with equal paths match the same keys.

    A path with `subtree` matches keys with more segments than its own, any other path keys with
    equally many. The empty pattern has no segments and `subtree`.
    """

    segments: tuple[bytes, ...]
    """Literals, or literal prefixes according to `wildcards`; without the empty segment after a
    separator at the end of the pattern."""
    wildcards: tuple[bool, ...]
    """For each segment, whether it ended with `*`."""
    subtree: bool
    """Whether the pattern ended with a separator, or is empty."""

    @property
    def is_literal(self) -> bool:
        """Whether the only key that it matches is the pattern itself."""
        return not self.subtree and True not in self.wildcards


def parse_pattern(pattern: bytes, dialect: Dialect) -> PatternPath | None:
    """The path of `pattern`, or None when it cannot match any key: a segment goes on after a `*`.
    Repeated stars are the same as one."""
    parts = pattern.split(dialect.separator)
    subtree = not parts[-1]
    if subtree:
        parts.pop()
    segments = []
    wildcards = []
    for part in parts:
        literal, star, behind = part.partition(b"*")
        if behind.strip(b"*"):
            return None
        segments.append(literal)
        wildcards.append(bool(star))
    return PatternPath(tuple(segments), tuple(wildcards), subtree)


def format_path(path: PatternPath, dialect: Dialect) -> bytes:
    """The shortest pattern with this path."""
    if not path.segments:
        return b""
    parts = [
        text + b"*" if wildcard else text
        for text, wildcard in zip(path.segments, path.wildcards, strict=True)
    ]
    return dialect.separator.join([*parts, b""] if path.subtree else parts)


def is_reserved(key_or_pattern: bytes, dialect: Dialect) -> bool:
    """Whether a segment is `!` (slash dialect), or it begins with `!` (dot dialect)."""
    if RESERVED_SEGMENT not in key_or_pattern:
        return False
    if dialect == DOT:
        return key_or_pattern.startswith(RESERVED_SEGMENT)
    return RESERVED_SEGMENT in key_or_pattern.split(dialect.separator)


def check_key(key: bytes, dialect: Dialect, limits: Limits) -> None:
    """Accept a key that a client may publish with. Raises, in this order, Misbehaviour
    `key-too-long` (bytes) or `key-too-deep` (segments), and Refusal `reserved` for a reserved key
    that is not secret."""
    _check_size("key", key, dialect, limits.key_bytes_max, limits.key_segments_max)
    if is_reserved(key, dialect) and not (dialect == SLASH and is_secret_key(key)):
        raise _reserved("key")


def check_pattern(pattern: bytes, dialect: Dialect, limits: Limits) -> None:
    """Accept a pattern that a client may subscribe to.

    Raises, in this order, Misbehaviour `pattern-too-long` (bytes) or `pattern-too-deep` (segments,
    including the empty one after a separator at the end), and Refusal `reserved` or, for a
    malformed presence pattern, `bad-name`, or, for a malformed secret pattern, Misbehaviour
    `bad-secret-pattern`. Ids are not compared here.
    """
    _check_size("pattern", pattern, dialect, limits.pattern_bytes_max, limits.pattern_segments_max)
    if not is_reserved(pattern, dialect):
        return
    if dialect == SLASH and begins_presence(pattern):
        check_presence_pattern(pattern)
        return
    if dialect != SLASH or not begins_secret(pattern):
        raise _reserved("pattern")
    check_secret_pattern(pattern)


def _check_size(
    what: str, text: bytes, dialect: Dialect, bytes_max: int, segments_max: int
) -> None:
    if len(text) > bytes_max:
        raise Misbehaviour(
            f"{what}-too-long", f"the {what} has {len(text)} bytes, at most {bytes_max} may be"
        )
    segments = text.count(dialect.separator) + 1
    if segments > segments_max:
        raise Misbehaviour(
            f"{what}-too-deep", f"the {what} has {segments} segments, at most {segments_max} may be"
        )


def _reserved(what: str) -> Refusal:
    return Refusal("reserved", f"the {what} is one that '!' reserves for the bus")
