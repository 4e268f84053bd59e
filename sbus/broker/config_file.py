"""The configuration file: limits, what single users have instead, access rules.

TOML, whose own errors name line and column. What the fields may hold is said by the types below
and checked by msgspec, and the rest, which types cannot say, behind it; those errors name the
field, counting from 0: `rules[2].users[0]`. The first mistake is reported and nothing else happens.

Users and groups are looked up once, when the file is read. Everything in the result is resolved,
so that processes without the file, or without the host's databases, can work with it.

This module does not know who obeys the rules and limits, nor what the command line says.
"""

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Hashable, Iterable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from sbus.broker.access import RULE_KEYS_MAX, RULES_MAX, Rule, Verb
from sbus.errors import ClientFault, ConfigurationError
from sbus.limits import Limits, UserLimits
from sbus.protocol.keys import Dialect, check_pattern, is_reserved, parse_pattern
from sbus.unix.users import group_id, user_id

FILE_BYTES_MAX: Final = 1024 * 1024
"""Far more than the most rules that there can be; what is larger is another kind of file."""
_SHOWN_CHARACTERS_MAX = 160

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
Some = Annotated[list[T], Meta(min_length=1)]


class _LimitsTable(Limits, frozen=True, forbid_unknown_fields=True):
    pass


class _UserTable(UserLimits, frozen=True, forbid_unknown_fields=True):
    pass


class _RuleTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    allow: Some[Verb] | None = None
    deny: Some[Verb] | None = None
    users: Some[int | str] | None = None
    groups: Some[int | str] | None = None
    keys: Some[str] | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limits: _LimitsTable = _LimitsTable()
    users: dict[str, Any] = {}
    rules: Annotated[list[_RuleTable], Meta(max_length=RULES_MAX)] = []


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration file says, resolved."""

    limits: dict[str, int | float]
    """Fields of `Limits`; those that the file does not mention are not here."""
    users: dict[int, dict[str, int | float]]
    """Likewise fields of `UserLimits`, by the user's id."""
    rules: tuple[Rule, ...]

    def bus_limits(self) -> Limits:
        """The limits of the bus, with defaults where the file says nothing."""
        return msgspec.structs.replace(Limits(), **self.limits)

    def user_limits(self, limits: Limits) -> dict[int, UserLimits]:
        """The limits of each user who has some of their own; `limits` are those of the bus."""
        return {
            uid: msgspec.structs.replace(limits.user, **table) for uid, table in self.users.items()
        }

    def __str__(self) -> str:
        return (
            f"limits: {len(self.limits)}, users with limits of their own: {len(self.users)}, "
            f"rules: {len(self.rules)}"
        )


def read_config(path: str, dialect: Dialect) -> Config:
    """What the file at `path` says to a bus of this dialect.

    Raises ConfigurationError: one line with the file, the place, what is wrong and what would do.
    """
    try:
        return parse_config(_read(path), dialect)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def parse_config(data: bytes, dialect: Dialect) -> Config:
    """What a file with these bytes says. Raises ConfigurationError, which knows no file."""
    table = _parse_toml(data)
    file = _convert(table, _File, "")
    limits = {name: getattr(file.limits, name) for name in table.get("limits", {})}
    users = _user_limits(file.users)
    rules = tuple(
        _rule(rule, f"rules[{number}]", dialect, file.limits)
        for number, rule in enumerate(file.rules)
    )
    if sum(len(rule.patterns) for rule in rules) > RULE_KEYS_MAX:
        raise ConfigurationError(f"rules: at most {RULE_KEYS_MAX} keys may be in all of them")
    return Config(limits=limits, users=users, rules=rules)


# -- the file --------------------------------------------------------------------------------------
def _read(path: str) -> bytes:
    """The bytes of a regular file. Raises OSError, ConfigurationError."""
    # Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigurationError("it is no regular file; name a TOML file")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(f"it has more than {FILE_BYTES_MAX} bytes; is it the right file?")
    return data


def _parse_toml(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(
            f"line {line} is not UTF-8: it holds the byte 0x{data[error.start]:02x}"
        ) from error
    try:
        # With a newline at its end, a mistake in the last line has a number as well.
        return tomllib.loads(f"{text}\n")
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"this is no TOML: {_shown(str(error))}") from error
    except RecursionError as error:
        raise ConfigurationError("arrays or tables are nested too deeply") from error
    except ValueError as error:
        raise ConfigurationError("a number has too many digits") from error


# -- fields ----------------------------------------------------------------------------------------
def _convert(table: object, kind: type[T], place: str) -> T:
    """`table` as a struct. Raises ConfigurationError, in which fields are below `place`."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        field = f"{place}{path.removesuffix('`')}".removeprefix(".")
        raise ConfigurationError(_explained(said, field)) from error


def _explained(said: str, field: str) -> str:
    """An error of msgspec's in this project's words; `field` is where, empty for the whole file."""
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", said, re.DOTALL)
    if unknown:
        return _unknown_field(unknown[1], field)
    verb = re.fullmatch(r"Invalid enum value (.*)", said, re.DOTALL)
    if verb:
        return f"{field}: there is no verb {_shown(verb[1])}; {_choice(v.value for v in Verb)}"
    said = said.replace("got `float`", "got a fraction")
    for word, meaning in _MEANINGS.items():
        said = said.replace(f"`{word}`", meaning)
    return f"{field}: {said[:1].lower()}{said[1:]}"


_MEANINGS: Final = {
    "object": "a table",
    "array": "an array",
    "array | null": "an array",
    "int | str": "a name or a whole number",
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "date": "a date",
}


def _unknown_field(name: str, field: str) -> str:
    if field.startswith("rules"):
        known = _RuleTable.__struct_fields__
    elif field.startswith("users"):
        known = _UserTable.__struct_fields__
    else:
        known = _LimitsTable.__struct_fields__ if field else _File.__struct_fields__
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        advice = f"did you mean {near[0]}?"
    else:
        advice = "sbusd --limit help lists them" if field == "limits" else _choice(known)
    return f"{field}.{_shown(name)}: there is no such field; {advice}".removeprefix(".")


def _choice(names: Iterable[str]) -> str:
    return f"choose from {', '.join(names)}"


def _shown(text: str) -> str:
    """Something out of the file, in a line that stays one and does not get long."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_SHOWN_CHARACTERS_MAX])
    return line if len(text) <= _SHOWN_CHARACTERS_MAX else f"{line}..."


# -- users and rules -------------------------------------------------------------------------------
def _user_limits(tables: dict[str, Any]) -> dict[int, dict[str, int | float]]:
    users: dict[int, dict[str, int | float]] = {}
    names: dict[int, str] = {}
    for name, whatever in tables.items():
        place = f"users.{_shown(name)}"
        table = _convert(whatever, dict[str, Any], place)
        uid = _at(place, user_id, name)
        if uid in users:
            raise ConfigurationError(
                f"{place}: this is the user of users.{_shown(names[uid])} again"
            )
        # All fields have to be there; those that the table leaves out are not looked at.
        limits = _convert({**msgspec.structs.asdict(Limits().user), **table}, _UserTable, place)
        users[uid] = {field: getattr(limits, field) for field in table}
        names[uid] = name
    return users


def _rule(table: _RuleTable, place: str, dialect: Dialect, limits: Limits) -> Rule:
    if (table.allow is None) == (table.deny is None):
        raise ConfigurationError(f"{place}: it needs either allow or deny, and not both")
    word = "allow" if table.allow is not None else "deny"
    verbs = _each(f"{place}.{word}", table.allow or table.deny or [], lambda verb: verb)
    for verb in verbs:
        if table.keys is not None and verb in (Verb.CONNECT, Verb.BLOCK):
            raise ConfigurationError(
                f"{place}.keys: {verb.value} is not about keys; give it a rule of its own"
            )

    def pattern(key: str) -> bytes:
        return _pattern(key, dialect, limits)

    return Rule(
        allows=table.allow is not None,
        verbs=frozenset(verbs),
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
        raise ConfigurationError(f"{place}: {_shown(str(error))}") from error
