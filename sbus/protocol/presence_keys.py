"""The names of clients, and the keys of the messages about joins and leaves.

A presence key is `!/presence/UID/NAME`. Only the bus publishes under such a key; clients may
subscribe to `!/presence/UID/NAME-PATTERN`, where UID is a number or `*`, and the name may end with
a `*` (docs/protocol.md, "Presence").
"""

import re
from typing import Final, NamedTuple

from sbus.errors import Refusal

NAME_BYTES_MAX: Final = 64
PRESENCE: Final = b"!/presence/"
"""What these keys and patterns begin with."""

_NAME_TEXT = rb"[A-Za-z0-9._:@+-]{1,%d}" % NAME_BYTES_MAX
_UID_TEXT = rb"0|[1-9][0-9]{0,9}"
_NAME = re.compile(_NAME_TEXT)
_PATTERN = re.compile(rb"(?P<uid>%b|\*)/(?P<name>(?:%b)?)(?P<star>\*?)" % (_UID_TEXT, _NAME_TEXT))


class NamePattern(NamedTuple):
    """Names of the user `uid`, or of all users if that is None: one, or all that begin so."""

    uid: int | None
    name: bytes
    is_prefix: bool


def check_name(name: bytes) -> None:
    """Accept a name that a client may take. Raises Refusal `bad-name`."""
    if not _NAME.fullmatch(name):
        raise Refusal(
            "bad-name", f"a name has 1 to {NAME_BYTES_MAX} letters, digits or any of . _ : @ + -"
        )


def parse_name_pattern(pattern: bytes) -> NamePattern:
    """What `UID/NAME-PATTERN` means. Raises Refusal `bad-name`."""
    found = _PATTERN.fullmatch(pattern)
    if found is None or not (found["name"] or found["star"]):
        raise Refusal("bad-name", "names are UID/NAME; UID may be *, and NAME may end with *")
    uid = None if found["uid"] == b"*" else int(found["uid"])
    return NamePattern(uid, found["name"], bool(found["star"]))


def begins_presence(key_or_pattern: bytes) -> bool:
    """Whether it is a presence key, or a pattern for such keys, well-formed or not."""
    return key_or_pattern.startswith(PRESENCE)


def check_presence_pattern(pattern: bytes) -> None:
    """Accept a well-formed pattern among those that `begins_presence`. Raises Refusal."""
    parse_name_pattern(pattern.removeprefix(PRESENCE))
