"""`NAME=VALUE`: a limit of the bus, or of one user, on a command line.

Names, types and defaults of the limits come from `sbus.limits` alone.
"""

from collections.abc import Iterable, Iterator

import msgspec

from sbus.errors import ConfigurationError
from sbus.limits import Limits, UserLimits
from sbus.validation import find_mistake, suggest


def parse_limits(assignments: Iterable[str], beneath: Limits) -> Limits:
    """`beneath` with these limits in place of its own; of one name the last holds.

    ConfigurationError, naming the culprit, for an unknown name or a value that cannot be.
    """
    chosen: dict[str, int | float] = {}
    for name, value in _pairs(assignments, option="--limit "):
        if name not in Limits.__struct_fields__:
            advice = suggest(name, Limits.__struct_fields__, "--limit help lists them")
            raise ConfigurationError(f"there is no limit {name!r}{advice}")
        chosen[name] = _number(name, value, name)
    return msgspec.structs.replace(beneath, **chosen)


def parse_user_limits(assignments: Iterable[str]) -> dict[str, int | float]:
    """What these `NAME=VALUE` say about the limits of one user, named as in `UserLimits`.

    ConfigurationError, naming the culprit, for an unknown name or a value that cannot be.
    """
    chosen: dict[str, int | float] = {}
    for name, value in _pairs(assignments):
        if name not in UserLimits.__struct_fields__:
            advice = suggest(name, UserLimits.__struct_fields__)
            raise ConfigurationError(f"a user has no limit {name!r}{advice}")
        chosen[name] = _number(name, value, f"user_{name}")
    return chosen


def describe_limits() -> str:
    """All limits with their defaults, one to a line, in the order of `Limits`."""
    fields = msgspec.structs.fields(Limits)
    width = max(len(field.name) for field in fields)
    return "\n".join(f"{field.name:{width}}  {field.default}" for field in fields)


def _pairs(assignments: Iterable[str], option: str = "") -> Iterator[tuple[str, str]]:
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            advice = f"; {option}help lists the names" if option else ""
            raise ConfigurationError(f"{option}{assignment}: give it as NAME=VALUE{advice}")
        yield name, value


def _number(name: str, value: str, field: str) -> int | float:
    """The value of the limit that is `name` to the user, as a value of `field` of `Limits`."""
    try:
        limits = msgspec.convert({field: value}, Limits, strict=False)
    except msgspec.ValidationError as error:
        expectation = find_mistake(error).text.partition(", got ")[0]
        raise ConfigurationError(f"limit {name} cannot be {value!r}: {expectation}") from error
    number: int | float = getattr(limits, field)
    return number
