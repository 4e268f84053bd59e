"""Explanations of what is wrong with data from outside: the place first, in words for people."""

from typing import Annotated, Any

import msgspec
import pytest

from sbus.validation import explain, printable, suggest


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: Annotated[int, msgspec.Meta(ge=1)] | None = None
    names: list[int | str] = []


class Outer(msgspec.Struct):
    inner: list[Inner]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([], "at: expected an object, got an array"),
        ({}, "at.inner: this field is missing"),
        ({"inner": [{}, {"number": 0}]}, "at.inner[1].number: expected a whole number >= 1"),
        ({"inner": [{"number": "1"}]}, "at.inner[0].number: expected a whole number, got a string"),
        (
            {"inner": [{"number": 1.5}]},
            "at.inner[0].number: expected a whole number, got a fraction",
        ),
        (
            {"inner": [{"names": [True]}]},
            "at.inner[0].names[0]: expected a name or a whole number, got true or false",
        ),
        (
            {"inner": [{"numbr": 1}]},
            "at.inner[0].numbr: there is no such field; did you mean number?",
        ),
        (
            {"inner": [{"\n": 1}]},
            r"at.inner[0].\n: there is no such field; choose from number, names",
        ),
    ],
)
def test_mistakes(data: Any, expected: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(data, Outer)
    assert explain(refused.value, "at", Inner.__struct_fields__) == expected


def test_what_is_no_json_has_no_place() -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        msgspec.json.decode(b"x", type=Outer)
    assert explain(refused.value, "at") == "JSON is malformed: invalid character (byte 0)"


def test_names_are_suggested() -> None:
    assert suggest("limt", ["limit", "user"]) == "; did you mean limit?"
    assert suggest("xyzzy", ["limit", "user"]) == "; choose from limit, user"
    assert suggest("xyzzy", ["limit", "user"], "see the manual") == "; see the manual"
    assert suggest("xyzzy", []) == ""


def test_text_from_outside_stays_one_short_line() -> None:
    assert printable("a\n\x1b\xff") == "a\\n\\x1b\xff"
    assert len(printable("a" * 10_000)) < 200
