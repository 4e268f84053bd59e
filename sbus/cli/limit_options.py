"""`NAME=VALUE`: a limit of the bus, or of one user, on a command line.

Names, types and defaults of the limits come from `sbus.limits` alone.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from sbus.errors import ConfigurationError
from sbus.limits import Limits, UserLimits
from sbus.validation import explain, suggest


def parse_limits(assignments: Iterable[str], beneath: Limits) -> Limits:
    """`beneath` with these limits in place of its own. Raises ConfigurationError."""
    chosen = _parse(assignments, Limits, "there is no limit", "--limit help lists them")
    return msgspec.structs.replace(beneath, **chosen)


def parse_user_limits(assignments: Iterable[str]) -> dict[str, int | float]:
    """What these say about the limits of one user, as `UserLimits`. Raises ConfigurationError."""
    names = ", ".join(UserLimits.__struct_fields__)
    return _parse(assignments, UserLimits, "a user has no limit", f"choose from {names}")


def describe_limits() -> str:
    """All limits with their defaults, one to a line, in the order of `Limits`."""
    fields = msgspec.structs.fields(Limits)
    width = max(len(field.name) for field in fields)
    return "\n".join(f"{field.name:{width}}  {field.default}" for field in fields)


def _parse(
    assignments: Iterable[str], kind: type[msgspec.Struct], unknown: str, advice: str
) -> dict[str, int | float]:
    """Values by name; of one name the last. Errors name the culprit, and `advice` on names."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    chosen: dict[str, int | float] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigurationError(f"{assignment!r}: give it as NAME=VALUE; {advice}")
        if name not in types:
            raise ConfigurationError(f"{unknown} {name!r}{suggest(name, types, advice)}")
        chosen[name] = _number(name, value, types[name])
    return chosen


def _number(name: str, value: str, kind: Any) -> int | float:
    try:
        number: int | float = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        expectation = explain(error).partition(", got ")[0]
        raise ConfigurationError(f"limit {name} cannot be {value!r}: {expectation}") from error
    return number
