"""Routing keys and patterns: how they divide into segments, what they may hold, what is reserved.

A key is a row of segments between separators, and every one of its bytes stands for itself. In a
pattern a segment is a literal or a literal prefix before a `*`, which takes the rest of that
segment; a pattern that ends in a separator takes that separator and whatever follows it. So a
pattern is fully described by `PatternPath`, and matching goes segment by segment.

Of the reserved keys only the secret ones can be used, see `secret_keys.py`.

Does not know how patterns are stored or matched, nor whose they are. NUL bytes are the packets'
affair: no key that was cut from a packet holds one.
"""

from typing import Final

import msgspec

from sbus.errors import Misbehaviour, Refusal
from sbus.limits import Limits
from sbus.protocol.secret_keys import begins_secret, check_secret_pattern, is_secret_key

RESERVED_SEGMENT: Final = b"!"
"""The segment that belongs to the protocol (slash dialect), and the byte that begins a reserved
key (dot dialect)."""


class Dialect(msgspec.Struct, frozen=True):
    """One of the two ways to write keys (PROTOCOL, "Routing keys and patterns").

    `separator` is one byte; `has_control_messages` says whether `CMSG` is a word of it.
    """

    name: str
    separator: bytes
    has_control_messages: bool


SLASH: Final = Dialect("slash", b"/", True)
DOT: Final = Dialect("dot", b".", False)
DIALECTS: Final = {dialect.name: dialect for dialect in (SLASH, DOT)}


class PatternPath(msgspec.Struct, frozen=True):
    """A pattern, parsed; two patterns with equal paths match the same keys.

    A path with `subtree` matches keys of more segments than its own, any other those of exactly
    as many. The empty pattern is no segments and `subtree`.
    """

    segments: tuple[bytes, ...]
    """The literals, or the literal prefixes where `wildcards` says so; without the empty segment
    behind a separator that ends the pattern."""
    wildcards: tuple[bool, ...]
    """For each segment, whether a `*` ended it."""
    subtree: bool
    """Whether the pattern ended in a separator, or is empty."""

    @property
    def is_literal(self) -> bool:
        """Whether the pattern matches one key only, namely the one spelled like it."""
        return not self.subtree and True not in self.wildcards


def parse_pattern(pattern: bytes, dialect: Dialect) -> PatternPath | None:
    """The path of `pattern`, or None when no key can match it: bytes behind a `*` in its segment.

    Repeated stars mean what one does.
    """
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


def is_reserved(key_or_pattern: bytes, dialect: Dialect) -> bool:
    """Whether it belongs to the protocol.

    Slash dialect: some whole segment is `!`. Dot dialect: it begins with `!`.
    """
    if RESERVED_SEGMENT not in key_or_pattern:
        return False
    if dialect == DOT:
        return key_or_pattern.startswith(RESERVED_SEGMENT)
    return RESERVED_SEGMENT in key_or_pattern.split(dialect.separator)


def check_key(key: bytes, dialect: Dialect, limits: Limits) -> None:
    """Accept a key that a client may publish with.

    Raises Misbehaviour `key-too-long` (bytes) or `key-too-deep` (segments), and Refusal
    `reserved`, which all keys with a `!` are but the secret ones; a key that is guilty of several
    is judged in this order.
    """
    _check_size("key", key, dialect, limits.key_bytes_max, limits.key_segments_max)
    if is_reserved(key, dialect) and not (dialect == SLASH and is_secret_key(key)):
        raise _reserved("key")


def check_pattern(pattern: bytes, dialect: Dialect, limits: Limits) -> None:
    """Accept a pattern that a client may subscribe to.

    Raises Misbehaviour `pattern-too-long` (bytes) or `pattern-too-deep` (segments, with the empty
    one behind a separator that ends it), and Refusal `reserved` or, for what is meant as a secret
    pattern and is none, Misbehaviour `bad-secret-pattern`, in this order. Whether a secret
    pattern is this client's is not decided here.
    """
    _check_size("pattern", pattern, dialect, limits.pattern_bytes_max, limits.pattern_segments_max)
    if not is_reserved(pattern, dialect):
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
