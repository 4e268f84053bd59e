"""Containment and overlap of patterns, against the sets of keys that they match."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.keys import SLASH, Dialect, parse_pattern
from sbus.routing.pattern_sets import contains, overlap
from tests.unit.routing.specification import matches_as_any_pattern_does
from tests.unit.routing.texts import dialects, texts

PATTERN_BYTES_MAX = 4
KEY_BYTES_MAX = 6
"""Enough for a key that two such patterns have in common, and for one that only the inner one
matches: no more separators than the longer of them, in each segment the longer prefix, and one
byte more."""


def words(alphabet: str, length_max: int) -> list[bytes]:
    return [
        "".join(letters).encode()
        for length in range(length_max + 1)
        for letters in product(alphabet, repeat=length)
    ]


def test_every_two_short_patterns() -> None:
    keys = words("ab/", KEY_BYTES_MAX)
    matched = {
        pattern: {key for key in keys if matches_as_any_pattern_does(pattern, key, SLASH)}
        for pattern in words("a*/", PATTERN_BYTES_MAX)
    }
    paths = {pattern: parse_pattern(pattern, SLASH) for pattern in matched}
    compared = 0
    for one, one_path in paths.items():
        assert bool(matched[one]) == (one_path is not None)
        for other, other_path in paths.items():
            if one_path is None or other_path is None:
                continue
            compared += 1
            assert contains(one_path, other_path) == (matched[one] >= matched[other]), (one, other)
            assert overlap(one_path, other_path) == bool(matched[one] & matched[other]), (
                one,
                other,
            )
    assert compared > 3_000


@given(texts, texts, texts, dialects)
def test_no_key_contradicts(one: bytes, other: bytes, key: bytes, dialect: Dialect) -> None:
    one_path, other_path = parse_pattern(one, dialect), parse_pattern(other, dialect)
    if one_path is None or other_path is None:
        return
    by_one = matches_as_any_pattern_does(one, key, dialect)
    by_other = matches_as_any_pattern_does(other, key, dialect)
    if by_one and by_other:
        assert overlap(one_path, other_path)
    if by_other and not by_one:
        assert not contains(one_path, other_path)


@given(texts, texts, dialects, st.data())
def test_a_key_of_the_one_is_a_key_of_what_contains_it(
    one: bytes, other: bytes, dialect: Dialect, data: st.DataObject
) -> None:
    one_path, other_path = parse_pattern(one, dialect), parse_pattern(other, dialect)
    if one_path is None or other_path is None:
        return
    fillings = st.binary(max_size=2).filter(lambda text: dialect.separator not in text)
    parts = other.split(b"*")
    key = parts[0] + b"".join(data.draw(fillings) + part for part in parts[1:])
    assert matches_as_any_pattern_does(other, key, dialect)
    by_one = matches_as_any_pattern_does(one, key, dialect)
    assert by_one or not contains(one_path, other_path)
    assert overlap(one_path, other_path) or not by_one
    assert contains(other_path, other_path)
