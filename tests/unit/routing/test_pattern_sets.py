"""Containment and overlap of patterns, against the sets of keys that they match."""

from itertools import product

from sbus.protocol.keys import SLASH, parse_pattern
from sbus.routing.pattern_sets import contains, overlap
from tests.unit.routing.specification import matches_as_any_pattern_does

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
