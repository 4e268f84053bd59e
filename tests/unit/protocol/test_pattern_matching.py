"""Matching in the client against the rules as docs/protocol.md words them."""

from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.keys import DOT, SLASH, Dialect
from sbus.protocol.pattern_matching import compile_patterns
from sbus.protocol.secret_keys import begins_secret
from tests.unit.routing.specification import dialects, matches, texts


@given(patterns=st.lists(texts.filter(lambda it: not begins_secret(it)), max_size=4), key=texts)
def test_matches_as_the_specification_says(patterns: list[bytes], key: bytes) -> None:
    for dialect in (SLASH, DOT):
        found = bool(compile_patterns(patterns, dialect)(key))
        assert found == any(matches(pattern, key, dialect) for pattern in patterns)


@given(dialect=dialects, key=texts)
def test_no_pattern_matches_nothing(dialect: Dialect, key: bytes) -> None:
    assert not compile_patterns([], dialect)(key)


def test_an_empty_id_in_a_secret_pattern_stands_for_ones_own_or_none() -> None:
    fits = compile_patterns([b"!/cred//7//news/"], SLASH)
    assert fits(b"!/cred/5/7/9/news/today")
    assert fits(b"!/cred//7//news/today")
    assert not fits(b"!/cred/5//9/news/today")
    assert not fits(b"!/cred/5/7/9/other")
