"""What is wrong with a configuration file, in one line and in this project's words.

msgspec says what a field may hold in the words of programs; here they become those of people, with
the place in front, counting from 0: `rules[2].users[0]: there is no user 'alcie'`. Knows no file
and no field but those of the tables that it is given.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import inspect as types

Table = type[msgspec.Struct]

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


def in_own_words(
    error: msgspec.ValidationError, place: str, table_at: Callable[[str], Table]
) -> str:
    """A mistake in the table at `place`, the whole file's being empty. `table_at` tells what a
    table at a place has to be like."""
    located = re.fullmatch(r"(.*) - at `\$([^`]*)`", str(error), re.DOTALL)
    said, path = located.groups() if located else (str(error), "")
    field = f"{place}{path}".removeprefix(".")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", said, re.DOTALL)
    if unknown:
        return _unknown_field(unknown[1], field, table_at(field).__struct_fields__)
    word = re.fullmatch(r"Invalid enum value (.*)", said, re.DOTALL)
    if word:
        name = re.sub(r"\[\d+\]$", "", field).rpartition(".")[2]
        kind = "verb" if name in ("allow", "deny") else name
        words = _words_of(table_at(field), name)
        return f"{field}: there is no {kind} {shown(word[1])}; {choice(words)}"
    if "matching regex" in said:
        return f"{field}: no path holds a NUL"
    said = said.replace("got `float`", "got a fraction").replace(" | null`", "`")
    for name, meaning in _MEANINGS.items():
        said = said.replace(f"`{name}`", meaning)
    return f"{shown(field)}: {shown(said[:1].lower() + said[1:])}"


def _words_of(table: Table, name: str) -> list[str]:
    """The words that a field may hold, or the elements of its list."""
    info = types.type_info(table)
    assert isinstance(info, types.StructType)
    (field,) = [field for field in info.fields if field.name == name]
    return _words(field.type)


def _words(kind: types.Type) -> list[str]:
    if isinstance(kind, types.UnionType):
        return [word for one in kind.types for word in _words(one)]
    if isinstance(kind, types.ListType):
        return _words(kind.item_type)
    if isinstance(kind, types.LiteralType):
        return [str(word) for word in kind.values]
    return [member.value for member in kind.cls] if isinstance(kind, types.EnumType) else []


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
