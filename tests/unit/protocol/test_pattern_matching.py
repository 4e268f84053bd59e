"""Matching in the client against the rules as docs/protocol.md words them."""

from hypothesis import assume, example, given
from hypothesis import strategies as st

from sbus.protocol.keys import DOT, SLASH, parse_pattern
from sbus.protocol.pattern_matching import compile_patterns, covers
from sbus.protocol.secret_keys import begins_secret
from tests.unit.routing.specification import matches
from tests.unit.routing.texts import texts


@example(patterns=[b""], key=b"!a")
@given(patterns=st.lists(texts.filter(lambda it: not begins_secret(it)), max_size=4), key=texts)
def test_matches_as_the_specification_says(patterns: list[bytes], key: bytes) -> None:
    for dialect in (SLASH, DOT):
        found = bool(compile_patterns(patterns, dialect)(key))
        assert found == any(matches(pattern, key, dialect) for pattern in patterns)


def test_an_empty_id_in_a_secret_pattern_stands_for_ones_own_or_none() -> None:
    fits = compile_patterns([b"!/cred//7//news/"], SLASH)
    assert fits(b"!/cred/5/7/9/news/today")
    assert fits(b"!/cred//7//news/today")
    assert not fits(b"!/cred/5//9/news/today")
    assert not fits(b"!/cred/5/7/9/other")


def keys_of(pattern: bytes) -> list[bytes]:
    """Keys that a pattern matches, among them one that any other pattern matches by chance only."""
    path = parse_pattern(pattern, SLASH)
    assert path is not None
    pairs = zip(path.segments, path.wildcards, strict=True)
    segments = [text + b"\x01" if star else text for text, star in pairs]
    if not path.subtree:
        return [b"/".join(segments)]
    return [b"/".join([*segments, rest]) for rest in (b"", b"\x01", b"\x01/\x01")]


open_patterns = st.lists(st.sampled_from([b"a", b"b", b"*", b"/"]), max_size=6).map(b"".join)


@given(wide=open_patterns, narrow=open_patterns)
def test_a_pattern_covers_another_if_it_matches_all_its_keys(wide: bytes, narrow: bytes) -> None:
    paths = [parse_pattern(pattern, SLASH) for pattern in (wide, narrow)]
    assume(None not in paths)
    found = covers(*(path for path in paths if path is not None))
    assert found == all(matches(wide, key, SLASH) for key in keys_of(narrow))
