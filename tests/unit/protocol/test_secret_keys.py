"""Secret keys and patterns: their form, against the specification's regular expression."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import Misbehaviour, Refusal
from sbus.limits import Limits
from sbus.protocol.keys import DOT, SLASH, check_key, check_pattern, is_reserved
from sbus.protocol.secret_keys import ids_of, widened

LIMITS = Limits()
ID = rb"(?:|0|[1-9][0-9]*)"
PART = rb"!/cred/%b/%b/%b/" % (ID, ID, ID)
ORDINARY = rb"(?!!(?:/|\Z))[^/]*"
"""A segment that is not `!`."""
SECRET_KEY = re.compile(rb"%b(?:%b|%b/)*%b" % (PART, PART, ORDINARY, ORDINARY), re.DOTALL)

ID_OR_STAR = rb"(?:\*|%b)" % ID
PART_OF_REST = rb"!/cred/%b/%b/%b/" % (ID_OR_STAR, ID_OR_STAR, ID_OR_STAR)
SECRET_PATTERN = re.compile(
    rb"%b(?:%b|%b/)*%b" % (PART, PART_OF_REST, ORDINARY, ORDINARY), re.DOTALL
)

_segments = st.sampled_from(
    [b"!", b"cred", b"", b"0", b"7", b"10", b"007", b"1*", b"*", b"x", b"-1", b"+1", b" 1", b"!x"]
)
_ids = st.sampled_from([b"", b"", b"0", b"7", b"1234567890123", b"07", b"*", b"x", b"\xb2"])
_parts = st.tuples(st.just(b"!"), st.just(b"cred"), _ids, _ids, _ids)
_many = st.lists(st.one_of(_parts, st.tuples(_segments)), max_size=4)
_rows = st.builds(lambda first, rest: [*first, *sum(rest, ())], _parts, _many)
texts = st.one_of(_rows, _rows, st.lists(_segments, max_size=8)).map(b"/".join)


@given(texts)
def test_reserved_keys_are_accepted_if_they_match_the_expression(key: bytes) -> None:
    if not is_reserved(key, SLASH) or SECRET_KEY.fullmatch(key):
        check_key(key, SLASH, LIMITS)
    else:
        with pytest.raises(Refusal, match="reserved"):
            check_key(key, SLASH, LIMITS)


@given(texts)
def test_reserved_patterns_are_accepted_if_they_match_the_expression(pattern: bytes) -> None:
    if not is_reserved(pattern, SLASH) or SECRET_PATTERN.fullmatch(pattern):
        check_pattern(pattern, SLASH, LIMITS)
    elif re.match(rb"!/cred(/|\Z)", pattern) and not re.match(PART, pattern):
        with pytest.raises(Misbehaviour, match="bad-secret-pattern"):
            check_pattern(pattern, SLASH, LIMITS)
    else:
        with pytest.raises(Refusal, match="reserved"):
            check_pattern(pattern, SLASH, LIMITS)


def test_the_dot_dialect_has_none() -> None:
    for text in (b"!/cred/1/2/3/x", b"!.cred.1.2.3.x"):
        for check in (check_key, check_pattern):
            with pytest.raises(Refusal, match="reserved"):
                check(text, DOT, LIMITS)
    check_key(b"a.!.cred", DOT, LIMITS)


def test_ids_are_those_of_the_first_part() -> None:
    assert ids_of(b"!/cred/1/22/333/!/cred/4/5/6/x") == (b"1", b"22", b"333")
    assert ids_of(b"!/cred////") == (b"", b"", b"")


@pytest.mark.parametrize(
    ("pattern", "wide"),
    [
        (b"!/cred/1/2/3/x", b"!/cred/1/2/3/x"),
        (b"!/cred////", b"!/cred/*/*/*/"),
        (b"!/cred//2//!/cred////x", b"!/cred/*/2/*/!/cred////x"),
        (b"a//b", b"a//b"),
        (b"", b""),
    ],
)
def test_an_empty_id_may_be_any(pattern: bytes, wide: bytes) -> None:
    assert widened(pattern) == wide
