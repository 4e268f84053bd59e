"""Writes the effective configuration as a configuration file, from which the same plan is made.

Paths are absolute there, because relative ones begin in the directory of the file.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sbus.bus_options import OPTIONS
from sbus.cli.sbusd.plan import Plan
from sbus.limits import Limits


def to_toml(plan: Plan) -> str:
    """The text of the file, without a newline at its end."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield "[bus]"
    for option in OPTIONS:
        value = plan.options[option.name]
        path = os.path.abspath(value) if option.is_path(value) else value
        yield from _fields({option.name: path})
    yield "\n[limits]"
    yield from _fields(msgspec.structs.asdict(plan.resolved.limits if plan.resolved else Limits()))
    if plan.file is None:
        return
    for name, limits in plan.file.users.items():
        yield f"\n[users.{_value(name)}]"
        yield from _fields(limits)
    for rule in plan.file.rules:
        yield "\n[[rules]]"
        yield from _fields(msgspec.structs.asdict(rule))


def _fields(fields: Mapping[str, Any]) -> Iterator[str]:
    """One line for each field that has a value; TOML has none that stands for its absence."""
    for name, value in fields.items():
        if value not in (None, [], ()):
            yield f"{name} = {_value(value)}"


def _value(value: Any) -> str:
    """JSON, from which TOML differs in one character, which has to be escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
