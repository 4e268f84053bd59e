"""Secret keys, `!/cred/GID/UID/PID/rest`: the form of the keys and of patterns for them.

A *part* is `!/cred/GID/UID/PID/`, where each id is empty or decimal without leading zeros, followed
by a rest, which may be empty. A secret key begins with a part, which decides who may receive the
message; its rest may contain further parts, whose meaning is up to the programs that use them. No
other segment is `!`. Only the slash dialect has secret keys (docs/protocol.md, "Secret messages").

Ids are compared as text: each has one spelling, and any number of digits is allowed.
"""

from typing import Final

from sbus.errors import Misbehaviour, Refusal

_BEGINNING: Final = b"!/cred/"
_SEPARATOR: Final = b"/"
_MARK: Final = b"!"
_NAME: Final = b"cred"
_IDS_AT: Final = 2
_REST_AT: Final = 5
"""Of the segments of a part: `!`, `cred`, three ids, and at least one of the rest."""

Ids = tuple[bytes, bytes, bytes]
"""Group, user and process id as in a key or pattern; empty: unspecified."""


def is_secret_key(key: bytes) -> bool:
    """Whether `key` begins with a part, and every `!` segment begins a part."""
    return key.startswith(_BEGINNING) and _are_parts(key.split(_SEPARATOR), stars=False)


def ids_of(key_or_pattern: bytes) -> Ids:
    """The ids of the part that a secret key or pattern begins with."""
    gid, uid, pid = key_or_pattern.split(_SEPARATOR, _REST_AT)[_IDS_AT:_REST_AT]
    return gid, uid, pid


def begins_secret(pattern: bytes) -> bool:
    """Whether `pattern` is a secret pattern, well-formed or not."""
    return (pattern + _SEPARATOR).startswith(_BEGINNING)


def check_secret_pattern(pattern: bytes) -> None:
    """Accept a well-formed pattern among those that `begins_secret`.

    Raises Misbehaviour `bad-secret-pattern` when it does not begin with a whole part, and Refusal
    `reserved` for a `!` in its rest that does not begin one. Ids in its rest match like any other
    segment and may be `*` (a choice of this implementation).
    """
    segments = pattern.split(_SEPARATOR)
    if len(segments) <= _REST_AT or not all(map(_is_id, segments[_IDS_AT:_REST_AT])):
        raise Misbehaviour(
            "bad-secret-pattern",
            "the pattern does not begin with !/cred/GID/UID/PID/, each id a number or empty",
        )
    if not _are_parts(segments[_REST_AT:], stars=True):
        raise Refusal("reserved", "the pattern has a '!' after its ids that begins no other ids")


def widened(pattern: bytes) -> bytes:
    """The ordinary pattern for a secret pattern: with `*` for each empty id.

    An empty id means "mine, or unspecified", which is checked on delivery. A pattern that is not
    secret is returned unchanged.
    """
    if not pattern.startswith(_BEGINNING):
        return pattern
    segments = pattern.split(_SEPARATOR, _REST_AT)
    segments[_IDS_AT:_REST_AT] = [text or b"*" for text in segments[_IDS_AT:_REST_AT]]
    return _SEPARATOR.join(segments)


def _are_parts(segments: list[bytes], *, stars: bool) -> bool:
    """Whether each `!` in `segments` begins a part; with `stars`, an id may be `*`."""
    at = 0
    while _MARK in segments[at:]:
        at = segments.index(_MARK, at)
        part = segments[at : at + _REST_AT + 1]
        if len(part) <= _REST_AT or part[1] != _NAME:
            return False
        if not all(_is_id(text) or (stars and text == b"*") for text in part[_IDS_AT:_REST_AT]):
            return False
        at += _REST_AT
    return True


def _is_id(text: bytes) -> bool:
    return not text or (text.isdigit() and (text[:1] != b"0" or text == b"0"))
