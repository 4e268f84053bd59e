"""Users and groups, by the names or numbers that people write, and of processes.

Digits are an id, which need not exist; any other word is looked up in the host's databases.
"""

import grp
import os
import pwd
from collections.abc import Callable
from typing import NamedTuple, Self

from sbus.errors import ConfigurationError


class NameNotFound(ConfigurationError):
    """No user or group has this name. A directory of users that is not ready yet may know it."""


_ID_MAX = 2**32 - 2
"""The next one, -1, means "no id" in system calls."""


class Identity(NamedTuple):
    """What a process runs as: its user, its group and its supplementary groups."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(os.geteuid(), os.getegid(), tuple(os.getgroups()))

    @classmethod
    def of_user(cls, user: str | int) -> Self:
        """That of a user's processes; ConfigurationError for a name that does not exist. A number
        that nobody has is the number of the group as well."""
        uid = user_id(user)
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid, uid)
        return cls(uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def user_id(user: str | int) -> int:
    """The id of a user. Raises NameNotFound, and ConfigurationError for an impossible id."""
    return _id("user", user, lambda name: pwd.getpwnam(name).pw_uid)


def group_id(group: str | int) -> int:
    """The id of a group. Raises NameNotFound, and ConfigurationError for an impossible id."""
    return _id("group", group, lambda name: grp.getgrnam(name).gr_gid)


def _id(what: str, given: str | int, look_up: Callable[[str], int]) -> int:
    if isinstance(given, str) and not (given.isascii() and given.isdecimal()):
        try:
            return look_up(given)
        except (KeyError, ValueError):  # ValueError: an impossible name, such as one with a NUL
            raise NameNotFound(f"there is no {what} {given!r}") from None
    if len(str(given)) > len(str(_ID_MAX)) or not 0 <= int(given) <= _ID_MAX:
        raise ConfigurationError(f"{what} id {given} is out of range, {_ID_MAX} is the largest")
    return int(given)
