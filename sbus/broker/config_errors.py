"""What is wrong with a configuration file, in one line and in this project's words.

msgspec says what a field may hold in the words of programs; here they become those of people, with
the place in front, counting from 0: `rules[2].users[0]: there is no user 'alcie'`. Knows no file
and no field but the names it is given.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

import msgspec

from sbus.broker.access import Verb
from sbus.protocol.controls import Hard, Order, Soft
from sbus.protocol.keys import DIALECTS

_SHOWN_CHARACTERS_MAX = 160

_MEANINGS: Final = {
    "object": "a table",
    "array": "an array",
    "int | str": "a name or a whole number",
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "date": "a date",
}


def _words(kind: type[Enum]) -> list[str]:
    return [member.value for member in kind]


_CHOICES: Final = {
    "dialect": list(DIALECTS),
    "soft": _words(Soft),
    "hard": _words(Hard),
    "order": _words(Order),
    "allow": _words(Verb),
    "deny": _words(Verb),
}
"""The words that a field may hold, or the elements of its list."""


def in_own_words(
    error: msgspec.ValidationError, place: str, fields: Callable[[str], tuple[str, ...]]
) -> str:
    """A mistake in the table at `place`, the whole file's being empty. `fields` tells which fields
    the table at a place has."""
    located = re.fullmatch(r"(.*) - at `\$([^`]*)`", str(error), re.DOTALL)
    said, path = located.groups() if located else (str(error), "")
    field = f"{place}{path}".removeprefix(".")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", said, re.DOTALL)
    if unknown:
        return _unknown_field(unknown[1], field, fields(field))
    word = re.fullmatch(r"Invalid enum value (.*)", said, re.DOTALL)
    if word:
        name = re.sub(r"\[\d+\]$", "", field).rpartition(".")[2]
        kind = "verb" if name in ("allow", "deny") else name
        return f"{field}: there is no {kind} {shown(word[1])}; {choice(_CHOICES[name])}"
    if "matching regex" in said:
        return f"{field}: no path holds a NUL"
    said = said.replace("got `float`", "got a fraction").replace(" | null`", "`")
    for name, meaning in _MEANINGS.items():
        said = said.replace(f"`{name}`", meaning)
    return f"{shown(field)}: {shown(said[:1].lower() + said[1:])}"


def _unknown_field(name: str, place: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        advice = f"did you mean {near[0]}?"
    else:
        advice = "sbusd --limit help lists them" if place == "limits" else choice(known)
    return f"{place}.{shown(name)}: there is no such field; {advice}".removeprefix(".")


def choice(names: Iterable[str]) -> str:
    return f"choose from {', '.join(names)}"


def shown(text: str) -> str:
    """Something out of the file, in a line that stays one and does not get long."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_SHOWN_CHARACTERS_MAX])
    return line if len(text) <= _SHOWN_CHARACTERS_MAX else f"{line}..."
