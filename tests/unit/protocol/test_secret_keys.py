"""Secret keys and patterns: their form, against the specification's regular expression."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.errors import Misbehaviour, Refusal
from sbus.limits import Limits
from sbus.protocol.keys import SLASH, check_key, check_pattern, is_reserved

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
