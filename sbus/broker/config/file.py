"""The configuration file, read and written. What it means is found out in `resolution`.

It is TOML, whose own errors name line and column. msgspec checks the types of the fields. The first
mistake is reported, with its place.
"""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from sbus.broker.config.access_policy import RULES_MAX
from sbus.bus_options import OPTIONS, WORKERS_MAX, Kind, Option
from sbus.errors import ConfigurationError
from sbus.limits import Limits, UserLimits
from sbus.toml_file import parse_toml, read_regular
from sbus.validation import choose_from, explain, printable

T = TypeVar("T")
NonEmpty = Annotated[list[T], Meta(min_length=1)]

_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.SWITCH: bool,
    Kind.ADDRESS: Annotated[str, Meta(min_length=1)],
    Kind.PATH: Annotated[str, Meta(min_length=1)],
    Kind.GROUP: int | str,
    Kind.USER: int | str,
    Kind.USERS: NonEmpty[int | str],
    Kind.CHOICE: str,
    Kind.WORKERS: Annotated[int, Meta(ge=1, le=WORKERS_MAX)],
}
_BusTable = msgspec.defstruct(
    "_BusTable",
    [(option.name, _TYPES[option.kind], None) for option in OPTIONS],
    forbid_unknown_fields=True,
)


class _LimitsTable(Limits, frozen=True, forbid_unknown_fields=True):
    """`[limits]`."""


class _UserTable(UserLimits, frozen=True, forbid_unknown_fields=True):
    """`[users.NAME]`."""


class RuleTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `[[rules]]`; a list that is not given is empty."""

    allow: NonEmpty[str] = []
    deny: NonEmpty[str] = []
    users: NonEmpty[int | str] = []
    groups: NonEmpty[int | str] = []
    keys: NonEmpty[str] = []


class _Tables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bus: Any = {}
    limits: Any = {}
    users: dict[str, Any] = {}
    rules: Annotated[list[Any], Meta(max_length=RULES_MAX)] = []


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says. What it does not mention is missing here."""

    path: str = ""
    bus: dict[str, Any] = {}
    """Options by name; paths are absolute."""
    limits: dict[str, int | float] = {}
    """Fields of `Limits`."""
    users: dict[str, dict[str, int | float]] = {}
    """Fields of `UserLimits`, by what the file calls the user."""
    rules: list[RuleTable] = []

    def __str__(self) -> str:
        return (
            f"bus: {len(self.bus)}, limits: {len(self.limits)}, users with limits of their own: "
            f"{len(self.users)}, rules: {len(self.rules)}"
        )


def read_config(path: str) -> ConfigFile:
    """What the file at `path` says. Raises ConfigurationError: one line with the file, the place,
    and what is wrong there."""
    try:
        return parse_config(read_regular(path), path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {printable(path)}: {error.strerror}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{printable(path)}: {error}") from error


def parse_config(data: bytes, path: str = "") -> ConfigFile:
    """What a file with these bytes says. Raises ConfigurationError without the path."""
    tables = _convert(parse_toml(data), _Tables, "")
    directory = os.path.dirname(os.path.abspath(path))
    bus = _fields(tables.bus, _BusTable, "bus")
    return ConfigFile(
        path=path,
        bus={
            option.name: _option(option, bus[option.name], directory)
            for option in OPTIONS
            if option.name in bus
        },
        limits=_fields(tables.limits, _LimitsTable, "limits"),
        users={
            # All fields have to be there; those that the table leaves out are not looked at.
            name: _fields(table, _UserTable, f"users.{printable(name)}", Limits().user)
            for name, table in tables.users.items()
        },
        rules=[
            _convert(table, RuleTable, f"rules[{number}]")
            for number, table in enumerate(tables.rules)
        ],
    )


def _fields(
    table: object, kind: type[msgspec.Struct], place: str, defaults: msgspec.Struct | None = None
) -> dict[str, Any]:
    """The fields that a table gives."""
    given = _convert(table, dict[str, Any], place)
    beneath = {} if defaults is None else asdict(defaults)
    checked = _convert({**beneath, **given}, kind, place)
    return {name: getattr(checked, name) for name in given}


def _convert(table: object, kind: type[T], place: str) -> T:
    """`table` with its types checked. Raises ConfigurationError, in which fields follow `place`."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        known = getattr(kind, "__struct_fields__", ())
        otherwise = "sbusd --limit help lists them" if place == "limits" else ""
        text = explain(error, place, known, otherwise).replace("an object", "a table")
        raise ConfigurationError(text) from error


def _option(option: Option, value: Any, directory: str) -> Any:
    """The value of an option; a path is absolute afterwards. Raises ConfigurationError."""
    if option.choices and value not in option.choices:
        raise ConfigurationError(
            f"bus.{option.name}: there is no {option.name} {printable(repr(value))}; "
            f"{choose_from(option.choices)}"
        )
    if not option.is_path(value):
        return value
    if "\0" in value:
        raise ConfigurationError(f"bus.{option.name}: a path cannot contain a NUL")
    return os.path.join(directory, value)


# -- writing ---------------------------------------------------------------------------------------
def format_config(options: Mapping[str, Any], limits: Limits, file: ConfigFile) -> str:
    """A file that says all of this, and about users and rules what `file` says. Paths are absolute,
    because relative ones begin in the directory of the file. There is no newline at the end."""
    bus = dict(options)
    for option in OPTIONS:
        if option.is_path(bus[option.name]):
            bus[option.name] = os.path.abspath(bus[option.name])
    lines = ["[bus]", *_assignments(bus), "\n[limits]", *_assignments(asdict(limits))]
    for name, user_limits in file.users.items():
        lines += [f"\n[users.{_value(name)}]", *_assignments(user_limits)]
    for rule in file.rules:
        lines += ["\n[[rules]]", *_assignments(asdict(rule))]
    return "\n".join(lines)


def _assignments(fields: Mapping[str, Any]) -> list[str]:
    """A line for each field that has a value: TOML has nothing that stands for its absence."""
    return [f"{k} = {_value(v)}" for k, v in fields.items() if v not in (None, [], ())]


def _value(value: Any) -> str:
    """JSON, from which TOML differs in one character, which has to be escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
