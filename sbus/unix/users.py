"""Users and groups as people write them: by name, or by number.

Digits are an id, which need not exist; any other word is looked up in the host's databases.
"""

import grp
import pwd
from collections.abc import Callable

from sbus.errors import ConfigurationError

_ID_MAX = 2**32 - 2
"""The next one, -1, means "no id" in system calls."""


def user_id(user: str | int) -> int:
    """The id of a user; ConfigurationError for one that does not exist."""
    return _id("user", user, lambda name: pwd.getpwnam(name).pw_uid)


def group_id(group: str | int) -> int:
    """The id of a group; ConfigurationError for one that does not exist."""
    return _id("group", group, lambda name: grp.getgrnam(name).gr_gid)


def _id(what: str, given: str | int, look_up: Callable[[str], int]) -> int:
    if isinstance(given, str) and not (given.isascii() and given.isdecimal()):
        try:
            return look_up(given)
        except (KeyError, ValueError):  # ValueError: an impossible name, such as one with a NUL
            raise ConfigurationError(f"there is no {what} {given!r}") from None
    if len(str(given)) > len(str(_ID_MAX)) or not 0 <= int(given) <= _ID_MAX:
        raise ConfigurationError(f"{what} id {given} is out of range, {_ID_MAX} is the largest")
    return int(given)
