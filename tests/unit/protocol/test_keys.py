"""Patterns: parsing against the specification's sentences."""

import re

from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.keys import DOT, SLASH, Dialect, format_path, parse_pattern

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
