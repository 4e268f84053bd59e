"""Keys and patterns: parsing against the specification's sentences, limits at their edges."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import Misbehaviour, Refusal
from sbus.limits import Limits
from sbus.protocol.keys import (
    DOT,
    SLASH,
    Dialect,
    check_key,
    check_pattern,
    format_path,
    is_reserved,
    parse_pattern,
)

dialects = st.sampled_from([SLASH, DOT])
texts = st.one_of(
    st.lists(st.sampled_from([b"a", b"b", b"*", b"/", b".", b"!"]), max_size=9).map(b"".join),
    st.binary(max_size=12),
)


@given(texts, dialects)
def test_only_a_byte_behind_a_star_makes_a_pattern_impossible(
    pattern: bytes, dialect: Dialect
) -> None:
    impossible = re.search(rb"\*[^*%b]" % dialect.separator, pattern, re.DOTALL)
    assert (parse_pattern(pattern, dialect) is None) == (impossible is not None)


@given(texts, dialects)
def test_a_path_spells_its_pattern_but_for_repeated_stars(pattern: bytes, dialect: Dialect) -> None:
    parsed = parse_pattern(pattern, dialect)
    if parsed is None:
        return
    assert format_path(parsed, dialect) == re.sub(rb"\*+", b"*", pattern)


@given(texts, dialects)
def test_a_literal_pattern_has_no_star_and_no_separator_at_its_end(
    pattern: bytes, dialect: Dialect
) -> None:
    parsed = parse_pattern(pattern, dialect)
    literal = b"*" not in pattern and pattern[-1:] not in (b"", dialect.separator)
    assert (parsed is not None and parsed.is_literal) == literal


@given(texts)
def test_reserved_in_the_slash_dialect_is_between_separators_or_ends(key: bytes) -> None:
    expected = re.search(rb"(\A|/)!(/|\Z)", key) is not None
    assert is_reserved(key, SLASH) == expected


@given(texts)
def test_reserved_in_the_dot_dialect_is_what_begins_so(key: bytes) -> None:
    assert is_reserved(key, DOT) == (key[:1] == b"!")


SMALL = Limits(key_bytes_max=10, key_segments_max=3, pattern_bytes_max=12, pattern_segments_max=4)


@given(texts, dialects, st.integers(0, 12), st.integers(1, 5))
def test_the_checks_accept_exactly_what_the_limits_say(
    text: bytes, dialect: Dialect, bytes_max: int, segments_max: int
) -> None:
    limits = msgspec.structs.replace(
        SMALL,
        key_bytes_max=bytes_max,
        key_segments_max=segments_max,
        pattern_bytes_max=bytes_max,
        pattern_segments_max=segments_max,
    )
    segments = len(re.findall(re.escape(dialect.separator), text)) + 1
    within = len(text) <= bytes_max and segments <= segments_max
    for check in (check_key, check_pattern):
        if within and not is_reserved(text, dialect):
            check(text, dialect, limits)
        else:
            with pytest.raises(Refusal if within else Misbehaviour):
                check(text, dialect, limits)
