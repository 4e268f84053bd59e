"""Users and groups as people write them: by name, or by number.

A word of digits is a number, and need not belong to anybody; any other has to be in the host's
databases. This module decides nothing about them.
"""

import grp
import pwd

from sbus.errors import ConfigurationError

_ID_MAX = 2**32 - 2
"""The one above it, -1, stands for nobody in the kernel's calls."""


def user_id(user: str | int) -> int:
    """The id of a user; ConfigurationError for one that does not exist."""
    number = _as_number("user", user)
    if number is not None:
        return number
    try:
        return pwd.getpwnam(str(user)).pw_uid
    except (KeyError, ValueError):  # ValueError: a name that cannot be, one with a NUL say
        raise ConfigurationError(f"there is no user {user!r}") from None


def group_id(group: str | int) -> int:
    """The id of a group; ConfigurationError for one that does not exist."""
    number = _as_number("group", group)
    if number is not None:
        return number
    try:
        return grp.getgrnam(str(group)).gr_gid
    except (KeyError, ValueError):
        raise ConfigurationError(f"there is no group {group!r}") from None


def _as_number(what: str, given: str | int) -> int | None:
    if isinstance(given, str):
        if not (given.isascii() and given.isdecimal()):
            return None
        if len(given) > len(str(_ID_MAX)):
            raise _out_of_range(what, given)
    number = int(given)
    if not 0 <= number <= _ID_MAX:
        raise _out_of_range(what, given)
    return number


def _out_of_range(what: str, given: str | int) -> ConfigurationError:
    return ConfigurationError(f"{what} id {given} is out of range, {_ID_MAX} is the largest")
