"""Keys as subjects of NATS and back, and patterns as subject filters.

A segment of a key is a token of its subject. Printable ASCII stands for itself, but for the
characters that mean something to NATS, and `=`; any other byte is `=` and two hexadecimal digits,
and an empty segment is a lone `=`. So every key has one subject, and a subject at most one key.

A filter may match more keys than its pattern, because NATS has no wildcard for the rest of a token.
"""

import re
from typing import Final

import msgspec

from sbus.protocol.keys import Dialect, parse_pattern

_EMPTY: Final = "="
_ODD = re.compile(rb"[^!-~]|[.*>=]")
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")


class Filter(msgspec.Struct, frozen=True):
    """What to subscribe to in NATS for a pattern."""

    tokens: str
    is_exact: bool
    """Whether it matches no other keys than the pattern does."""


def encode_token(segment: bytes) -> str:
    """Any bytes as one token."""
    if not segment:
        return _EMPTY
    return _ODD.sub(lambda odd: b"=%02X" % ord(odd[0]), segment).decode("ascii")


def decode_token(token: str) -> bytes | None:
    """None for a token that `encode_token` does not make."""
    if token == _EMPTY:
        return b""
    if not token.isascii():
        return None
    segment = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), token.encode())
    return segment if encode_token(segment) == token else None


def encode_key(key: bytes, dialect: Dialect) -> str:
    """The subject of a key, below that of its channel and origin."""
    return ".".join(map(encode_token, key.split(dialect.separator)))


def decode_key(subject: str, dialect: Dialect) -> bytes | None:
    """The key of a subject, or None for one that no key has."""
    segments = []
    for token in subject.split("."):
        segment = decode_token(token)
        if segment is None or dialect.separator in segment or b"\0" in segment:
            return None
        segments.append(segment)
    return dialect.separator.join(segments)


def filter_of(pattern: bytes, dialect: Dialect) -> Filter | None:
    """The narrowest filter for the subjects of all keys that match; None if none can."""
    path = parse_pattern(pattern, dialect)
    if path is None:
        return None
    pairs = list(zip(path.segments, path.wildcards, strict=True))
    tokens = ["*" if wildcard else encode_token(text) for text, wildcard in pairs]
    if path.subtree:
        tokens.append(">")
    return Filter(".".join(tokens), not any(text and wildcard for text, wildcard in pairs))
