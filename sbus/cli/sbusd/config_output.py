"""What a command line, its file and the defaults come to, as a file that says all of it.

Whoever reads that file understands the same. Paths are written in full, because relative ones
begin where a file is. This module does not know what any of it means.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sbus.broker.config.file import PATHS, BusTable
from sbus.cli.sbusd.sockets import NO_ADMIN
from sbus.cli.sbusd.words import Plan
from sbus.limits import Limits


def as_toml(plan: Plan) -> str:
    """The text of the file, without a newline at its end."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield "[bus]"
    names = BusTable.__struct_fields__
    yield from _fields({name: _in_full(name, plan.bus[name]) for name in names})
    yield "\n[limits]"
    yield from _fields(msgspec.structs.asdict(plan.limits or Limits()))
    if plan.file is None:
        return
    for name, limits in plan.file.users.items():
        yield f"\n[users.{_value(name)}]"
        yield from _fields(limits)
    for rule in plan.file.rules:
        yield "\n[[rules]]"
        yield from _fields(msgspec.to_builtins(rule))


def _in_full(name: str, value: Any) -> Any:
    is_path = name in PATHS and value is not None and value != NO_ADMIN
    return os.path.abspath(value) if is_path else value


def _fields(fields: Mapping[str, Any]) -> Iterator[str]:
    """What was not given stays unsaid: no value stands for that."""
    return (
        f"{name} = {_value(value)}" for name, value in fields.items() if value not in (None, [], ())
    )


def _value(value: Any) -> str:
    """JSON, of which TOML differs in one character that it wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
