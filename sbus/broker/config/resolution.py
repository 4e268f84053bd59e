"""What a configuration file means: users and groups looked up, access rules understood.

Names are looked up once, when the file is read, which takes as long as the host's databases take.
The result needs neither the file nor those databases, so every process can work with it. Errors
name the place as those of `file` do.

A name that is not found is an error, except where the caller gives a list for them: a bus that
starts before the host's directory of users goes on without, and looks them up again. Until then
they give nobody any right; see `access_policy`.
"""

import os
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from sbus.broker.config.access_policy import RULE_KEYS_MAX, AccessRule, Permission
from sbus.broker.config.file import ConfigFile, RuleTable
from sbus.broker.config.settings import OPTION_FIELDS, BusSettings
from sbus.bus_options import OPTIONS, Kind
from sbus.errors import ClientFault, ConfigurationError
from sbus.limits import Limits, UserLimits
from sbus.protocol.controls import FloodControl
from sbus.protocol.keys import SLASH, Dialect, check_pattern, is_reserved, parse_pattern
from sbus.protocol.presence_keys import begins_presence
from sbus.unix.address import parse_address
from sbus.unix.user_names import local_group_names, local_user_names
from sbus.unix.user_namespace import known_gids, known_uids
from sbus.unix.users import Identity, NameNotFound, group_id, user_id
from sbus.validation import choose_from, printable

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a bus, and where they came from."""

    settings: BusSettings
    options: Mapping[str, Any] = {}
    """The values of all options: the command line's, else the file's, else the defaults."""
    user_names: Mapping[int, str] = {}
    """What the file calls the users that have limits of their own."""
    checks_group: bool = False
    """Whether the bus itself checks for `group` and `others`, because its address has no mode."""
    missing_names: tuple[str, ...] = ()
    """Users and groups that were not found, each with its place."""


class ConfigurationSource(NamedTuple):
    """Where a running bus gets its configuration from: both may be called in any thread, take as
    long as the host's databases, and raise ConfigurationError."""

    reread: Callable[[], Configuration]
    """As the command line and the file say now."""
    look_up_again: Callable[[], Configuration]
    """As they said at the start, with the names that are found now."""


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What a file means beside its options."""

    limits: Limits = Limits()
    """Those of the command line, else the file's, else the defaults."""
    user_limits: dict[int, UserLimits] = {}
    """All limits of the users that have some of their own."""
    user_names: dict[int, str] = {}
    rules: tuple[AccessRule, ...] = ()


def build_configuration(
    options: Mapping[str, Any],
    users: frozenset[int],
    resolved: Resolved,
    *,
    owner: Identity,
    is_abstract: bool,
    missing_names: tuple[str, ...] = (),
) -> Configuration:
    """Put together what a command line and its file say; `users` are those of the option `users`,
    and `owner` started the bus. Raises ConfigurationError.

    The socket's file has a mode, which `group` and `others` widen and the kernel enforces; `users`
    are those among them that the bus admits. An abstract address has no mode, so the bus checks
    everything: only its owner may connect, unless those options say otherwise.
    """
    admit_uids: frozenset[int] | None = None
    admit_gids: frozenset[int] = frozenset()
    if options["users"]:
        admit_uids = users | known_uids({owner.uid})
    elif is_abstract and not options["others"]:
        admit_uids = known_uids({owner.uid})
        admit_gids = known_gids({owner.gid} if options["group"] else ())
        if not admit_uids and not admit_gids:
            raise ConfigurationError(
                "this user namespace does not translate the id of the bus's own user, so nobody "
                "could connect; map it, or name users with -u, or give -o"
            )
    settings = BusSettings(
        **{name: options[name] for name in OPTION_FIELDS},
        limits=resolved.limits,
        user_limits=resolved.user_limits,
        rules=resolved.rules,
        flood_control=msgspec.convert(options, FloodControl),
        admit_uids=admit_uids,
        admit_gids=admit_gids,
    )
    return Configuration(
        settings=settings,
        options=options,
        user_names=resolved.user_names,
        checks_group=is_abstract,
        missing_names=missing_names,
    )


def resolve(
    file: ConfigFile, dialect: Dialect, limits: Limits, missing: list[str] | None = None
) -> Resolved:
    """What a file means to a bus of this dialect with these limits, the file's own included. Raises
    ConfigurationError, which begins with the file and the place. With `missing`, names that are not
    found are added to it."""
    try:
        _check_options(file.bus, missing)
        names = _user_names(file, missing)
        _check_room_for_other_users(names, limits)
        return Resolved(
            limits=limits,
            user_limits={
                uid: msgspec.structs.replace(limits.user, **file.users[name])
                for uid, name in names.items()
            },
            user_names={uid: printable(name) for uid, name in names.items()},
            rules=_rules(file.rules, dialect, limits, missing),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{printable(file.path)}: {error}") from error


def _check_options(options: Mapping[str, Any], missing: list[str] | None) -> None:
    """Check what types cannot say. The caller looks the names up itself, where they matter."""
    for option in OPTIONS:
        value = options.get(option.name)
        place = f"bus.{option.name}"
        if value is None:
            continue
        if option.kind is Kind.ADDRESS and option.is_path(value):
            _at(place, parse_address, value)
        elif option.kind is Kind.GROUP:
            _at(place, group_id, value)
        elif option.kind is Kind.USER:
            _at(place, user_id, value)
        elif option.kind is Kind.USERS:
            _each(place, value, user_id, None if missing is None else [])


def _user_names(file: ConfigFile, missing: list[str] | None) -> dict[int, str]:
    names: dict[int, str] = {}
    for name in file.users:
        place = f"users.{printable(name)}"
        uid = look_up(place, user_id, name, missing)
        if uid is None:
            continue
        if uid in names:
            first = printable(names[uid])
            raise ConfigurationError(f"{place}: this is the same user as users.{first}")
        names[uid] = name
    return names


def _check_room_for_other_users(names: Mapping[int, str], limits: Limits) -> None:
    """Accounts of named users are never closed, nor are those of root and of the bus's own user."""
    if names and len({0, os.getuid(), *names}) >= limits.users_max:
        raise ConfigurationError(
            f"users: {len(names)} have limits of their own, which leaves no account for others; "
            f"raise limits.users_max, which is {limits.users_max}, or name fewer"
        )


# -- rules -----------------------------------------------------------------------------------------
def _rules(
    tables: list[RuleTable], dialect: Dialect, limits: Limits, missing: list[str] | None
) -> tuple[AccessRule, ...]:
    rules = tuple(
        _rule(table, f"rules[{number}]", dialect, limits, missing)
        for number, table in enumerate(tables)
    )
    if sum(len(rule.patterns) for rule in rules) > RULE_KEYS_MAX:
        raise ConfigurationError(f"rules: all of them together have at most {RULE_KEYS_MAX} keys")
    return rules


def _rule(
    table: RuleTable, place: str, dialect: Dialect, limits: Limits, missing: list[str] | None
) -> AccessRule:
    if bool(table.allow) == bool(table.deny):
        raise ConfigurationError(f"{place}: needs either allow or deny, but not both")
    field = "allow" if table.allow else "deny"
    permissions = _each(f"{place}.{field}", table.allow or table.deny, _permission)
    for permission in permissions:
        if table.keys and permission not in _PERMISSIONS_WITH_KEYS:
            raise ConfigurationError(
                f"{place}.keys: {permission.value} does not depend on keys; give it its own rule"
            )

    uids = _each(f"{place}.users", table.users, user_id, missing)
    gids = _each(f"{place}.groups", table.groups, group_id, missing)
    pattern = partial(_pattern, dialect=dialect, limits=limits)
    return AccessRule(
        allows=bool(table.allow),
        permissions=frozenset(permissions),
        uids=frozenset(uids),
        gids=frozenset(gids),
        local_uids=None if len(uids) == len(table.users) else frozenset(local_user_names()),
        local_gids=None if len(gids) == len(table.groups) else frozenset(local_group_names()),
        patterns=tuple(_each(f"{place}.keys", table.keys, pattern)),
    )


_PERMISSIONS_WITH_KEYS: Final = (Permission.PUBLISH, Permission.SUBSCRIBE)


def _permission(name: str) -> Permission:
    try:
        return Permission(name)
    except ValueError as error:
        known = choose_from(permission.value for permission in Permission)
        raise ConfigurationError(f"there is no permission {name!r}; {known}") from error


def _pattern(key: str, dialect: Dialect, limits: Limits) -> bytes:
    """A pattern as `SUB` takes it, but no secret one. Raises ConfigurationError."""
    pattern = key.encode()
    if is_reserved(pattern, dialect) and not (dialect == SLASH and begins_presence(pattern)):
        text = "'!' is reserved; the keys of secret messages name their recipients"
        raise ConfigurationError(text)
    try:
        check_pattern(pattern, dialect, limits)
    except ClientFault as fault:
        raise ConfigurationError(fault.text) from fault
    if b"\0" in pattern:
        raise ConfigurationError("it can match nothing: no key holds a NUL")
    if parse_pattern(pattern, dialect) is None:
        raise ConfigurationError(
            f"it can match nothing: '*' stands for the rest of its segment, so only "
            f"'{dialect.separator.decode()}' can follow it"
        )
    return pattern


def _each(
    place: str, given: list[T], resolve: Callable[[T], H], missing: list[str] | None = None
) -> list[H]:
    """The resolved elements of a list, as `look_up` returns them. Raises ConfigurationError, with
    the place of the element, for one that is there twice and for whatever `resolve` raises."""
    found: dict[H, None] = {}
    for number, element in enumerate(given):
        resolved = look_up(f"{place}[{number}]", resolve, element, missing)
        if resolved is None:
            continue
        if resolved in found:
            raise ConfigurationError(f"{place}[{number}]: it is in this list already")
        found[resolved] = None
    return list(found)


def look_up(place: str, resolve: Callable[[T], H], given: T, missing: list[str] | None) -> H | None:
    """As `resolve` returns it; None for a name that is not found, which is added to `missing`.
    Raises ConfigurationError, also for such a name if `missing` is None."""
    try:
        return _at(place, resolve, given)
    except NameNotFound as error:
        if missing is None:
            raise
        missing.append(str(error))
        return None


def _at(place: str, resolve: Callable[[T], H], given: T) -> H:
    try:
        return resolve(given)
    except ConfigurationError as error:
        kind = NameNotFound if isinstance(error, NameNotFound) else ConfigurationError
        raise kind(f"{place}: {printable(str(error))}") from error
