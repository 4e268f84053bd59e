"""Secret keys, `!/cred/GID/UID/PID/rest`: their form, and the form of patterns for them.

A *part* is `!/cred/GID/UID/PID/`, each id in decimal without leading zeros or empty, and something
behind it, possibly nothing. A secret key begins with a part, and that one decides who may receive
it; its rest may hold further parts, which say whatever the programs that use them agree on. No
other segment of it is `!`. All of this belongs to the slash dialect.

Ids are compared as they are spelled: there is one spelling for each, and none is too large.

Does not know whose ids are whose (PROTOCOL, "Secret messages").
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
"""Group, user and process as a key or pattern spells them; empty: unspecified."""


def is_secret_key(key: bytes) -> bool:
    """Whether `key` begins with a part, and every `!` in it begins one."""
    return key.startswith(_BEGINNING) and _are_parts(key.split(_SEPARATOR), stars=False)


def ids_of(key_or_pattern: bytes) -> Ids:
    """The ids of the part that a secret key or pattern begins with."""
    gid, uid, pid = key_or_pattern.split(_SEPARATOR, _REST_AT)[_IDS_AT:_REST_AT]
    return gid, uid, pid


def begins_secret(pattern: bytes) -> bool:
    """Whether `pattern` can only be meant for secret keys."""
    return (pattern + _SEPARATOR).startswith(_BEGINNING)


def check_secret_pattern(pattern: bytes) -> None:
    """Accept a pattern that `begins_secret` when it is one for secret keys.

    Raises Misbehaviour `bad-secret-pattern` when it does not begin with a whole part, and Refusal
    `reserved` for a `!` in its rest that begins none. In the parts of its rest, whose ids match as
    any segment does, an id may be a `*` (a choice of this server's).
    """
    segments = pattern.split(_SEPARATOR)
    if len(segments) <= _REST_AT or not all(map(_is_id, segments[_IDS_AT:_REST_AT])):
        raise Misbehaviour(
            "bad-secret-pattern",
            "the pattern does not begin with !/cred/GID/UID/PID/, each id a number or empty",
        )
    if not _are_parts(segments[_REST_AT:], stars=True):
        raise Refusal("reserved", "the pattern has a '!' behind its ids that begins no others")


def widened(pattern: bytes) -> bytes:
    """The ordinary pattern that matches all that `pattern` may: `*` for an id that is empty.

    An empty id stands for "mine, or unspecified", and whose it is has to be seen where the message
    is delivered. Any pattern that is not secret is returned as it is.
    """
    if not pattern.startswith(_BEGINNING):
        return pattern
    segments = pattern.split(_SEPARATOR, _REST_AT)
    segments[_IDS_AT:_REST_AT] = [text or b"*" for text in segments[_IDS_AT:_REST_AT]]
    return _SEPARATOR.join(segments)


def _are_parts(segments: list[bytes], *, stars: bool) -> bool:
    """Whether each `!` among `segments` begins a part; ids may be a star if `stars`."""
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
