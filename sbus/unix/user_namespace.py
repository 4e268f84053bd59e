"""Ids that the kernel cannot translate into this process's user namespace.

The kernel reports the *overflow id* in their place, 65534 by default, often called `nobody`. So if
some ids are not translated, that number stands for any user or group of another namespace. Source:
user_namespaces(7).
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

_IDS = 2**32 - 1
"""The ids of a namespace that translates all of them, such as the initial one."""


@cache
def untranslated_ids() -> tuple[int, int]:
    """The group and user id that the kernel reports for ids outside of our user namespace."""
    return _overflow_id("gid"), _overflow_id("uid")


def known_gids(gids: Iterable[int]) -> frozenset[int]:
    """These groups, without the one that may stand for any group of another namespace."""
    return frozenset(gids) - _ambiguous_ids("gid")


def known_uids(uids: Iterable[int]) -> frozenset[int]:
    """These users, without the one that may stand for any user of another namespace."""
    return frozenset(uids) - _ambiguous_ids("uid")


@cache
def _ambiguous_ids(which: str) -> frozenset[int]:
    try:
        ranges = Path(f"/proc/self/{which}_map").read_text().splitlines()
    except FileNotFoundError:
        return frozenset()  # a kernel without user namespaces
    translated = sum(int(line.split()[2]) for line in ranges)
    return frozenset() if translated >= _IDS else frozenset({_overflow_id(which)})


def _overflow_id(which: str) -> int:
    return int(Path(f"/proc/sys/kernel/overflow{which}").read_bytes())
