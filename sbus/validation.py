"""Explains in people's words why data from outside does not have its type.

msgspec checks configuration files, requests and options, and its errors speak to programmers. This
is the one module that reads their text. An explanation names the place first, with elements of
lists counted from 0: `rules[2].users[0]: expected a string, got true or false`.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from sbus.protocol.text import one_line

_SHOWN_CHARACTERS_MAX = 160

_TYPES: Final = {
    "object": "an object",
    "array": "an array",
    "int | str": "a name or a whole number",
    "int | float": "a number",
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "date": "a date",
}


def explain(
    error: msgspec.DecodeError, place: str = "", fields: Iterable[str] = (), otherwise: str = ""
) -> str:
    """One line about the value at `place`. For an unknown field it suggests one of `fields`."""
    if not isinstance(error, msgspec.ValidationError):
        return str(error)
    located = re.fullmatch(r"(.*) - at `\$([^`]*)`", str(error), re.DOTALL)
    text, path = located.groups() if located else (str(error), "")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        path = f"{path}.{printable(unknown[1])}"
        text = f"there is no such field{suggest(unknown[1], fields, otherwise)}"
    elif missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        path, text = f"{path}.{missing[1]}", "this field is missing"
    text = text.replace("got `float`", "got a fraction").replace(" | null`", "`")
    for name, meaning in _TYPES.items():
        text = text.replace(f"`{name}`", meaning)
    where = f"{place}{path}".removeprefix(".")
    text = printable(text[:1].lower() + text[1:])
    return f"{where}: {text}" if where else text


def suggest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Advice to append to an error: the known name that is nearest to the unknown `name`. If none
    is near it is `otherwise`, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    advice = otherwise or (choose_from(names) if names else "")
    return f"; {advice}" if advice else ""


def choose_from(names: Iterable[str]) -> str:
    return f"choose from {', '.join(names)}"


def printable(text: str) -> str:
    """Text from outside as part of one line that does not get long."""
    line = one_line(text[:_SHOWN_CHARACTERS_MAX])
    return line if len(text) <= _SHOWN_CHARACTERS_MAX else f"{line}..."
