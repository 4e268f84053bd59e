"""The demo's judgement: every way in which a delivery can be wrong makes it say so."""

import pytest

from sbus.demo.verify import expected, is_complete

PUBLISHED = [
    [(b"a/x", b"1"), (b"a/y", b"2"), (b"a/x", b"3")],
    [(b"b/x", b"4"), (b"b/y", b"5")],
]
ALL = [(b"a/x", b"1"), (b"b/x", b"4"), (b"a/y", b"2"), (b"a/x", b"3"), (b"b/y", b"5")]


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        # The examples of docs/protocol.md, "Keys and patterns".
        (b"a/b", b"a/b", True),
        (b"a/b", b"a/b/", False),
        (b"a/b", b"a/bc", False),
        (b"a/b*", b"a/b", True),
        (b"a/b*", b"a/bcd", True),
        (b"a/b*", b"a/bcd/e", False),
        (b"a/*/c", b"a//c", True),
        (b"a/*/c", b"a/x/y/c", False),
        (b"a/*/c/", b"a/b/c/", True),
        (b"a/*/c/", b"a/b/c/d/e", True),
        (b"a/*/c/", b"a/b/c", False),
        (b"a/*/c/", b"a/c/d", False),
        (b"*", b"", True),
        (b"*", b"a/b", False),
        (b"*/", b"a/\n\xff", True),
        (b"*/", b"a", False),
        (b"", b"", True),
        (b"", b"a/b", True),
        (b"a.c", b"abc", False),
    ],
)
def test_expected_follows_the_protocol(pattern: bytes, key: bytes, matches: bool) -> None:
    assert expected(pattern, [(key, b"")]) == ([(key, b"")] if matches else [])


def test_publishers_may_take_turns_in_any_way() -> None:
    assert is_complete(ALL, PUBLISHED)
    assert is_complete([*PUBLISHED[1], *PUBLISHED[0]], PUBLISHED)


@pytest.mark.parametrize(
    ("what", "received"),
    [
        ("one is missing", ALL[:2] + ALL[3:]),
        ("the last is missing", ALL[:-1]),
        ("one came twice", [*ALL[:2], *ALL[1:]]),
        ("one publisher's order changed", [ALL[2], ALL[1], ALL[0], *ALL[3:]]),
        ("a payload changed", [(b"a/x", b"?"), *ALL[1:]]),
        ("one came that nobody published", [*ALL, (b"c", b"")]),
        ("one came behind the end", [*ALL, ALL[-1]]),
    ],
)
def test_what_did_not_arrive_as_published_is_found(
    what: str, received: list[tuple[bytes, bytes]]
) -> None:
    assert not is_complete(received, PUBLISHED), what
