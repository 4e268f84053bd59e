"""The base of all kinds of events; see `events`."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from sbus.protocol.text import one_line

ERROR: Final = 3
WARNING: Final = 4
NOTICE: Final = 5
INFO: Final = 6
DEBUG: Final = 7
"""Priorities, as syslog(3) counts them."""
NO_NAMES: Final[Mapping[int, str]] = {}


def _id(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that connects; `program` is "" if it has ended."""

    uid: int
    gid: int
    pid: int
    program: str


class Client(Process, frozen=True, kw_only=True):
    """A client of the bus: its number and its process."""

    client: int


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_id):
    """The root of all kinds. The fields of a field `who` are fields of the event."""

    priority: ClassVar[int]
    template: ClassVar[str]
    logged: ClassVar[bool] = False

    @classmethod
    def id(cls) -> str:
        """The stable name of this kind."""
        return str(cls.__struct_config__.tag)

    def fields(self) -> dict[str, Any]:
        """Names and values, without the id."""
        found: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            found.update(msgspec.structs.asdict(value) if name == "who" else {name: value})
        return found

    def text(self, user_names: Mapping[int, str] = NO_NAMES) -> str:
        """One line for people, with the names of users that are known."""
        shown = {name: _shown(name, value) for name, value in self.fields().items()}
        if (uid := shown.get("uid")) is not None and int(uid) in user_names:
            shown["uid"] = f"{uid} ({user_names[int(uid)]})"
        return one_line(self.template.format(**shown))


class LoggedEvent(Event, frozen=True, kw_only=True):
    """The root of the kinds that are logged."""

    logged = True


def _shown(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "nothing"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {count}" for key, count in value.items())
    if name == "program":
        return value or "ended"
    return str(value)
