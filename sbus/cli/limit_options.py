"""`--limit NAME=VALUE`: any bound of the bus, from the command line.

Which limits there are, their types and defaults come from `sbus.limits.Limits` alone; nothing here
has to change when one is added. This module does not know what any of them means.
"""

import difflib
from collections.abc import Iterable

import msgspec

from sbus.errors import ConfigurationError
from sbus.limits import Limits


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


def describe_limits() -> str:
    """All limits with their defaults, one to a line, in the order of `Limits`."""
    fields = msgspec.structs.fields(Limits)
    width = max(len(field.name) for field in fields)
    return "\n".join(f"{field.name:{width}}  {field.default}" for field in fields)


def _check(name: str, value: str) -> None:
    if name not in Limits.__struct_fields__:
        raise ConfigurationError(f"there is no limit {name!r}; {_near_matches(name)}")
    try:
        msgspec.convert({name: value}, Limits, strict=False)
    except msgspec.ValidationError as error:
        expectation = str(error).partition(" - at ")[0].partition(", got ")[0].replace("`", "")
        raise _bad_value(name, value, expectation.lower()) from error


def _bad_value(name: str, value: str, expectation: str) -> ConfigurationError:
    return ConfigurationError(f"limit {name} cannot be {value!r}: {expectation}")


def _near_matches(name: str) -> str:
    near = difflib.get_close_matches(name, Limits.__struct_fields__, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return "--limit help lists them"
