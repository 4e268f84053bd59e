"""`NAME=VALUE`: any bound of the bus, or of one user, from the command line.

Which limits there are, their types and defaults come from `sbus.limits` alone; nothing here has to
change when one is added. This module does not know what any of them means.
"""

import difflib
from collections.abc import Iterable

import msgspec

from sbus.errors import ConfigurationError
from sbus.limits import Limits, UserLimits


def parse_limits(assignments: Iterable[str], beneath: Limits) -> Limits:
    """`beneath` with these `NAME=VALUE` in place of its own, the last one of a name holding.

    ConfigurationError, naming the culprit, for an unknown name or a value that cannot be.
    """
    chosen: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigurationError(
                f"--limit {assignment}: give it as NAME=VALUE; --limit help lists the names"
            )
        _check(name, value)
        chosen[name] = value
    limits = msgspec.convert(chosen, Limits, strict=False)
    return msgspec.structs.replace(beneath, **{name: getattr(limits, name) for name in chosen})


def parse_user_limits(assignments: Iterable[str]) -> dict[str, int | float]:
    """What these `NAME=VALUE` say about the limits of one user, named as in `UserLimits`.

    ConfigurationError, naming the culprit, for an unknown name or a value that cannot be.
    """
    chosen: dict[str, int | float] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigurationError(f"{assignment}: give it as NAME=VALUE")
        if name not in UserLimits.__struct_fields__:
            names = UserLimits.__struct_fields__
            advice = _near_matches(name, names) or f"there are {', '.join(names)}"
            raise ConfigurationError(f"a user has no limit {name!r}; {advice}")
        chosen[name] = getattr(_convert(f"user_{name}", value, called=name), f"user_{name}")
    return chosen


def describe_limits() -> str:
    """All limits with their defaults, one to a line, in the order of `Limits`."""
    fields = msgspec.structs.fields(Limits)
    width = max(len(field.name) for field in fields)
    return "\n".join(f"{field.name:{width}}  {field.default}" for field in fields)


def _check(name: str, value: str) -> None:
    if name not in Limits.__struct_fields__:
        advice = _near_matches(name, Limits.__struct_fields__) or "--limit help lists them"
        raise ConfigurationError(f"there is no limit {name!r}; {advice}")
    _convert(name, value, called=name)


def _convert(name: str, value: str, *, called: str) -> Limits:
    """The default limits with this one; ConfigurationError names it as it is `called`."""
    try:
        return msgspec.convert({name: value}, Limits, strict=False)
    except msgspec.ValidationError as error:
        expectation = str(error).partition(" - at ")[0].partition(", got ")[0].replace("`", "")
        raise ConfigurationError(
            f"limit {called} cannot be {value!r}: {expectation.lower()}"
        ) from error


def _near_matches(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else ""
