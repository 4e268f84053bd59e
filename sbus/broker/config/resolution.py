"""What a bus goes by, out of its configuration file: limits, access rules, users.

Users and groups are looked up once, when the file is read, which may take as long as the host's
databases take. Everything in the result is resolved, so that processes without the file, or without
those databases, can work with it. Errors name the field as those of the file's shape do.

This module does not know who obeys the rules and limits, nor what the command line says.
"""

import os
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import msgspec

from sbus.broker.config.access_policy import RULE_KEYS_MAX, AccessRule, Permission
from sbus.broker.config.file import NO_ADMIN, ConfigFile, RuleTable
from sbus.broker.config.settings import BusSettings
from sbus.broker.config.validation import shown
from sbus.errors import ClientFault, ConfigurationError
from sbus.limits import Limits, UserLimits
from sbus.protocol.keys import Dialect, check_pattern, is_reserved, parse_pattern
from sbus.unix.address import parse_address
from sbus.unix.users import group_id, user_id

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """All that a bus goes by: what its command line says, then its file, then the defaults."""

    settings: BusSettings
    bus: Mapping[str, Any] = {}
    """The fields of `[bus]`, plain, as they hold."""
    user_names: Mapping[int, str] = {}
    """What the file calls the users that have limits of their own."""
    checks_group: bool = False
    """Whether the bus itself checks for `group` and `others`: where its address has no mode."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says that has to be looked up."""

    user_limits: dict[int, UserLimits] = {}
    """Of the users that have some of their own, all of them."""
    user_names: dict[int, str] = {}
    rules: tuple[AccessRule, ...] = ()


def resolve(file: ConfigFile, dialect: Dialect, limits: Limits) -> Resolved:
    """What a file means to a bus of this dialect with these limits, the file's own included.

    Raises ConfigurationError, which begins with the file and the place.
    """
    try:
        _check_bus(file.bus)
        names = _user_names(file)
        _check_that_others_find_a_place(names, limits)
        return Resolved(
            user_limits={
                uid: msgspec.structs.replace(limits.user, **file.users[name])
                for uid, name in names.items()
            },
            user_names={uid: shown(name) for uid, name in names.items()},
            rules=_rules(file.rules, dialect, limits),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{shown(file.path)}: {error}") from error


def _check_that_others_find_a_place(names: Mapping[int, str], limits: Limits) -> None:
    """Users who are named have accounts that are never closed, as have root and the bus's own."""
    if names and len({0, os.getuid(), *names}) >= limits.users_max:
        raise ConfigurationError(
            f"users: {len(names)} have limits of their own, which leaves no account for others; "
            f"raise limits.users_max, which is {limits.users_max}, or name fewer"
        )


def _check_bus(bus: Mapping[str, Any]) -> None:
    """Accept what the types of `[bus]` cannot say."""
    if "address" in bus:
        _at("bus.address", parse_address, bus["address"])
    if bus.get("admin_address", NO_ADMIN) != NO_ADMIN:
        _at("bus.admin_address", parse_address, bus["admin_address"])
    if "admin_group" in bus:
        _at("bus.admin_group", group_id, bus["admin_group"])
    _each("bus.users", bus.get("users", []), user_id)


def _user_names(file: ConfigFile) -> dict[int, str]:
    names: dict[int, str] = {}
    for name in file.users:
        place = f"users.{shown(name)}"
        uid = _at(place, user_id, name)
        if uid in names:
            raise ConfigurationError(
                f"{place}: this is the user of users.{shown(names[uid])} again"
            )
        names[uid] = name
    return names


# -- rules -----------------------------------------------------------------------------------------
def _rules(tables: list[RuleTable], dialect: Dialect, limits: Limits) -> tuple[AccessRule, ...]:
    rules = tuple(
        _rule(table, f"rules[{number}]", dialect, limits) for number, table in enumerate(tables)
    )
    if sum(len(rule.patterns) for rule in rules) > RULE_KEYS_MAX:
        raise ConfigurationError(f"rules: at most {RULE_KEYS_MAX} keys may be in all of them")
    return rules


def _rule(table: RuleTable, place: str, dialect: Dialect, limits: Limits) -> AccessRule:
    if (table.allow is None) == (table.deny is None):
        raise ConfigurationError(f"{place}: it needs either allow or deny, and not both")
    word = "allow" if table.allow is not None else "deny"
    permissions = _each(f"{place}.{word}", table.allow or table.deny or [], lambda each: each)
    for permission in permissions:
        if table.keys is not None and permission in (Permission.CONNECT, Permission.BLOCK):
            raise ConfigurationError(
                f"{place}.keys: {permission.value} is not about keys; give it a rule of its own"
            )

    def pattern(key: str) -> bytes:
        return _pattern(key, dialect, limits)

    return AccessRule(
        allows=table.allow is not None,
        permissions=frozenset(permissions),
        uids=frozenset(_each(f"{place}.users", table.users or [], user_id)),
        gids=frozenset(_each(f"{place}.groups", table.groups or [], group_id)),
        patterns=tuple(_each(f"{place}.keys", table.keys or [], pattern)),
    )


def _pattern(key: str, dialect: Dialect, limits: Limits) -> bytes:
    """A pattern as `SUB` takes it, but no secret one. Raises ConfigurationError."""
    pattern = key.encode()
    if is_reserved(pattern, dialect):
        raise ConfigurationError("'!' is the bus's own; secret messages have rules of their own")
    try:
        check_pattern(pattern, dialect, limits)
    except ClientFault as fault:
        raise ConfigurationError(fault.text) from fault
    if b"\0" in pattern:
        raise ConfigurationError("it can match nothing: no key holds a NUL")
    if parse_pattern(pattern, dialect) is None:
        raise ConfigurationError(
            f"it can match nothing: a '*' stands for the rest of its segment, and something other "
            f"than '{dialect.separator.decode()}' follows it"
        )
    return pattern


def _each(place: str, given: list[T], resolve: Callable[[T], H]) -> list[H]:
    """What the elements of an array stand for. Raises ConfigurationError for one that is there
    already, and with its place whatever `resolve` raises."""
    found: dict[H, None] = {}
    for number, element in enumerate(given):
        resolved = _at(f"{place}[{number}]", resolve, element)
        if resolved in found:
            raise ConfigurationError(f"{place}[{number}]: it is in this list already")
        found[resolved] = None
    return list(found)


def _at(place: str, resolve: Callable[[T], H], given: T) -> H:
    try:
        return resolve(given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {shown(str(error))}") from error
