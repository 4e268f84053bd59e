"""Who may connect, out of `-u`, `-g` and `-o`.

A path's socket file has a mode, which `-g` and `-o` widen, and the kernel enforces it; `-u` names
those among them whom the bus lets in. An abstract address has no mode, so there the bus does it:
only its own user, unless `-u`, `-g` or `-o` say otherwise. This module does not know how a client
is turned away.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from sbus.unix.users import user_id


class Admission(NamedTuple):
    """As in BusSettings: `uids` None admits everybody who gets as far as the socket."""

    uids: frozenset[int] | None
    gids: frozenset[int]


def socket_mode(*, group: bool, others: bool) -> int:
    """The mode of the socket's file: the owner's, `-g` and `-o`."""
    return 0o700 | (0o070 if group else 0) | (0o007 if others else 0)


def admission(uids: frozenset[int], *, is_abstract: bool, group: bool, others: bool) -> Admission:
    """Whom the bus itself has to check for; `uids` are those of `-u`, none without it."""
    own = os.geteuid()
    if uids:
        return Admission(uids | {own}, frozenset())
    if not is_abstract or others:
        return Admission(None, frozenset())
    return Admission(frozenset({own}), frozenset({os.getegid()} if group else ()))


def resolve_users(names: Iterable[str | int]) -> frozenset[int]:
    """The ids of users given by name or number; ConfigurationError for one that does not exist."""
    return frozenset(user_id(name) for name in names)
