"""The configuration file: its shape. What it means is found out behind it, in `configuration`.

TOML, whose own errors name line and column. What the fields may hold is said by the types below
and checked by msgspec. The first mistake is reported, with its place, and nothing else happens.

This module does not know the command line, users, keys, nor who obeys any of it.
"""

import os
import stat
import tomllib
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from sbus.broker.config.access_policy import RULES_MAX, Permission
from sbus.broker.config.validation import Table, in_own_words, shown
from sbus.errors import ConfigurationError
from sbus.limits import Limits, UserLimits
from sbus.protocol.controls import BacklogOrder, Hard, Soft
from sbus.shared.shared_memory import WORKERS_MAX

FILE_BYTES_MAX: Final = 1024 * 1024
"""Far more than the most rules that there can be; what is larger is another kind of file."""

T = TypeVar("T")
Some = Annotated[list[T], Meta(min_length=1)]
Path = Annotated[str, Meta(min_length=1, pattern=r"^[^\0]*\Z")]


class BusTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[bus]`: what the command line of sbusd can say, by the long names of its options.

    A field that is None was not given.
    """

    address: Path | None = None
    foreground: bool | None = None
    pidfile: Path | None = None
    users: Some[int | str] | None = None
    exit_when_empty: bool | None = None
    group: bool | None = None
    others: bool | None = None
    replace: bool | None = None
    admin_address: Path | None = None
    admin_group: int | str | None = None
    refuse_descriptors: bool | None = None
    workers: Annotated[int, Meta(ge=1, le=WORKERS_MAX)] | None = None
    dialect: Literal["slash", "dot"] | None = None
    soft: Soft | None = None
    hard: Hard | None = None
    order: BacklogOrder | None = None
    log: Literal["auto", "journal", "stderr"] | None = None


PATHS: Final = ("address", "pidfile", "admin_address")
"""Fields of `[bus]` that name a file; a relative one begins where the configuration file is."""
NO_ADMIN: Final = "none"
"""As an `admin_address`, this is no path."""


class LimitsTable(Limits, frozen=True, forbid_unknown_fields=True):
    """`[limits]`."""


class UserTable(UserLimits, frozen=True, forbid_unknown_fields=True):
    """`[users.NAME]`."""


class RuleTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `[[rules]]`."""

    allow: Some[Permission] | None = None
    deny: Some[Permission] | None = None
    users: Some[int | str] | None = None
    groups: Some[int | str] | None = None
    keys: Some[str] | None = None


class _Tables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bus: BusTable = BusTable()
    limits: LimitsTable = LimitsTable()
    users: dict[str, Any] = {}
    rules: Annotated[list[RuleTable], Meta(max_length=RULES_MAX)] = []


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says. Nothing stands here that it does not mention."""

    path: str = ""
    bus: dict[str, Any] = {}
    """Fields of `BusTable`, plain; paths are absolute."""
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
    """What the file at `path` says.

    Raises ConfigurationError: one line with the file, the place, what is wrong and what would do.
    """
    try:
        return parse_config(_read(path), path)
    except OSError as error:
        raise ConfigurationError(f"cannot read {shown(path)}: {error.strerror}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{shown(path)}: {error}") from error


def parse_config(data: bytes, path: str = "") -> ConfigFile:
    """What a file with these bytes says. Raises ConfigurationError, which knows no file."""
    table = _parse_toml(data)
    tables = _convert(table, _Tables, "")
    bus = {name: getattr(tables.bus, name) for name in table.get("bus", {})}
    directory = os.path.dirname(os.path.abspath(path))
    for name in bus.keys() & set(PATHS):
        if bus[name] != NO_ADMIN or name != "admin_address":
            bus[name] = os.path.join(directory, bus[name])
    return ConfigFile(
        path=path,
        bus=msgspec.to_builtins(bus),
        limits={name: getattr(tables.limits, name) for name in table.get("limits", {})},
        users={name: _user_table(name, table) for name, table in tables.users.items()},
        rules=tables.rules,
    )


def _user_table(name: str, whatever: object) -> dict[str, int | float]:
    place = f"users.{shown(name)}"
    table = _convert(whatever, dict[str, Any], place)
    # All fields have to be there; those that the table leaves out are not looked at.
    limits = _convert({**msgspec.structs.asdict(Limits().user), **table}, UserTable, place)
    return {field: getattr(limits, field) for field in table}


def _convert(table: object, kind: type[T], place: str) -> T:
    """`table` as a struct. Raises ConfigurationError, in which fields are below `place`."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(in_own_words(error, place, _table_at)) from error


def _table_at(place: str) -> Table:
    """The type of the table at a place, or of that which has the field there."""
    tables: dict[str, Table] = {
        "bus": BusTable,
        "limits": LimitsTable,
        "users": UserTable,
        "rules": RuleTable,
    }
    return tables.get(place.partition(".")[0].partition("[")[0], _Tables)


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
        raise ConfigurationError(f"this is no TOML: {shown(str(error))}") from error
    except RecursionError as error:
        raise ConfigurationError("arrays or tables are nested too deeply") from error
    except ValueError as error:
        raise ConfigurationError("a number has too many digits") from error
