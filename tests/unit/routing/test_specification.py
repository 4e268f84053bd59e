"""The oracle itself, against the examples that the specification gives in words."""

import pytest

from sbus.protocol.keys import DOT, SLASH
from tests.unit.routing.specification import matches


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        (b"a/b*", b"a/bcd"),
        (b"a/b*", b"a/b"),
        (b"a/*/c/", b"a/b/c/"),
        (b"a/*/c/", b"a/b/c/d/e"),
        (b"a/", b"a/"),
        (b"a/", b"a/b/c"),
        (b"/", b"/"),
        (b"/", b"/a/b"),
        (b"*/", b"a/b"),
        (b"*/", b"/"),
        (b"a**", b"ab"),
        (b"*", b"*"),
        (b"*", b""),
        (b"", b"anything/at\nall"),
        (b"!*", b"!x"),
        (b"!/x", b"!/x"),
        (b"!/", b"!/x/!/y"),
    ],
)
def test_matching(pattern: bytes, key: bytes) -> None:
    assert matches(pattern, key, SLASH)
    in_dots = key.replace(b"/", b".")
    if not in_dots.startswith(b"!x"):
        assert matches(pattern.replace(b"/", b"."), in_dots, DOT)


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        (b"a/*/c/", b"a/b/c"),
        (b"a/*/c/", b"a/c/d"),
        (b"a/", b"a"),
        (b"/", b"a/"),
        (b"*/", b"a"),
        (b"a*b", b"ab"),
        (b"a*b", b"a*b"),
        (b"*", b"a/b"),
        (b"a*", b"a/"),
        (b"*", b"!"),
        (b"", b"!"),
        (b"", b"!/cred/1/2/3/x"),
        (b"", b"a/!/b"),
        (b"a/!/b", b"a/!/b"),
        (b"*/", b"!/x"),
        (b"!*/", b"!/x"),
    ],
)
def test_not_matching(pattern: bytes, key: bytes) -> None:
    assert not matches(pattern, key, SLASH)


@pytest.mark.parametrize("pattern", [b"", b"*", b"!*", b"!x", b"!x."])
def test_no_pattern_reaches_a_key_that_begins_reserved_in_the_dot_dialect(pattern: bytes) -> None:
    assert not matches(pattern, b"!x", DOT)
    assert not matches(pattern, b"!x.y", DOT)
