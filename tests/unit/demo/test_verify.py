"""The demo's judgement: every way in which a delivery can be wrong makes it say so."""

import pytest

from sbus.demo.verify import common_order, expected, positions

PUBLISHED = {
    "one": [(b"a/x", b"1"), (b"a/y", b"2"), (b"a/x", b"3")],
    "two": [(b"b/x", b"4"), (b"b/y", b"5")],
}
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
    assert expected(pattern, [(key, b"")]) == ([0] if matches else [])


def test_what_arrived_in_order_is_placed() -> None:
    placed = [("one", 0), ("two", 0), ("one", 1), ("one", 2), ("two", 1)]
    assert positions(b"", PUBLISHED, ALL) == placed
    assert positions(b"*/x", PUBLISHED, [ALL[1], ALL[0], ALL[3]]) == [
        ("two", 0),
        ("one", 0),
        ("one", 2),
    ]
    assert positions(b"c/", PUBLISHED, []) == []


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
    assert positions(b"", PUBLISHED, received) is None, what


def test_what_does_not_match_may_not_arrive() -> None:
    assert positions(b"a/", PUBLISHED, ALL) is None


def test_orders_are_compared_where_they_overlap() -> None:
    one, two, three = ("one", 0), ("one", 1), ("two", 0)
    assert common_order({"p": [one, three, two], "q": [one, two], "r": [three]}) == (3, [])
    assert common_order({"p": [one, three], "q": [three, one]}) == (2, [("p", "q")])
