"""Which patterns get a hint."""

import re

import pytest

from sbus.protocol.keys import DOT, SLASH
from sbus.protocol.pattern_hints import pattern_hint


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (b"a/*x", "matches no key"),
        (b"lamps.*.state", "matches no key"),
        (b"a/**", "matches one segment"),
        (b"a/**/b", "matches one segment"),
        (b"lamps/#", "matches # only as it is"),
        (b"lamps/+/state", "matches [+] only as it is"),
        (b"lamps.>", "matches > only as it is"),
        (b"lamps/>", "matches > only as it is"),
        (b"\xff/#", "xff"),
    ],
)
def test_patterns_of_other_systems_get_one(pattern: bytes, what: str) -> None:
    assert re.search(what, pattern_hint(pattern, SLASH) or "")


@pytest.mark.parametrize(
    "pattern", [b"", b"*", b"*/", b"a/*/c", b"a/b*", b"a.b/c", b"c#/c++/a>b", b"a->b", b"1.5"]
)
def test_ordinary_patterns_get_none(pattern: bytes) -> None:
    assert pattern_hint(pattern, SLASH) is None


def test_in_the_dot_dialect_the_separator_is_another() -> None:
    hint = pattern_hint(b"lamps/3", DOT)
    assert hint is not None
    assert "dot dialect" in hint
    assert pattern_hint(b"lamps.*.state", DOT) is None
    assert "matches > only" in (pattern_hint(b"lamps.>", DOT) or "")
