"""The demo's judgement: every way in which a delivery can be wrong makes it say so."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.demo.verify import expected, is_complete
from sbus.protocol.keys import SLASH
from tests.unit.routing.specification import matches_as_any_pattern_does
from tests.unit.routing.texts import texts

PUBLISHED = [
    [(b"a/x", b"1"), (b"a/y", b"2"), (b"a/x", b"3")],
    [(b"b/x", b"4"), (b"b/y", b"5")],
]
ALL = [(b"a/x", b"1"), (b"b/x", b"4"), (b"a/y", b"2"), (b"a/x", b"3"), (b"b/y", b"5")]


@given(texts.filter(lambda text: not re.search(rb"\*[^/*]", text)), st.lists(texts, max_size=5))
def test_expected_follows_the_protocol(pattern: bytes, others: list[bytes]) -> None:
    """Where stars end their segments, as all of the demo do."""
    keys = [*others, pattern.replace(b"*", b"ab"), pattern.replace(b"*", b""), pattern + b"a/\n"]
    due = [(key, b"") for key in keys if matches_as_any_pattern_does(pattern, key, SLASH)]
    assert expected(pattern, [(key, b"") for key in keys]) == due


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
