"""Keys and patterns as subjects of NATS, against the rules of the protocol and those of NATS."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.bridge.subjects import decode_key, encode_key, filter_of
from sbus.protocol.keys import DOT, SLASH, Dialect, is_reserved
from tests.unit.routing.specification import matches
from tests.unit.routing.texts import dialects, texts

any_key = (st.binary(max_size=24) | texts).filter(lambda key: b"\0" not in key)
subjects = st.text("ab=.*> F20\n\u00e9", max_size=10)


def nats_matches(filter_: str, subject: str) -> bool:
    """As the documents of NATS say it."""
    wanted, tokens = filter_.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > at
        if at >= len(tokens) or token not in ("*", tokens[at]):
            return False
    return len(wanted) == len(tokens)


@given(any_key, dialects)
def test_every_key_has_a_subject_that_leads_back_to_it(key: bytes, dialect: Dialect) -> None:
    subject = encode_key(key, dialect)
    assert decode_key(subject, dialect) == key
    assert re.fullmatch(r"[!-~]+", subject)
    assert all(token and not set(token) & set("*>") for token in subject.split("."))


@given(subjects, dialects)
def test_no_key_has_two_subjects(subject: str, dialect: Dialect) -> None:
    key = decode_key(subject, dialect)
    assert key is None or encode_key(key, dialect) == subject


@pytest.mark.parametrize(
    ("key", "dialect", "subject"),
    [
        (b"lamps/3/state", SLASH, "lamps.3.state"),
        (b"lamps.3.state", DOT, "lamps.3.state"),
        (b"lamps.3.state", SLASH, "lamps=2E3=2Estate"),
        (b"a//b/", SLASH, "a.=.b.="),
        (b"", SLASH, "="),
        (b"a b/*/\xff", SLASH, "a=20b.=2A.=FF"),
        (b"a=b", SLASH, "a=3Db"),
        (b"a/b", DOT, "a/b"),
    ],
)
def test_ordinary_keys_stay_readable(key: bytes, dialect: Dialect, subject: str) -> None:
    assert encode_key(key, dialect) == subject


@settings(max_examples=4 * settings().max_examples)
@given(texts, st.lists(any_key, max_size=8), dialects)
def test_a_filter_matches_what_its_pattern_matches(
    pattern: bytes, keys: list[bytes], dialect: Dialect
) -> None:
    found = filter_of(pattern, dialect)
    for key in [*keys, pattern]:
        if is_reserved(key, dialect) or b"\0" in key:
            continue
        is_match = matches(pattern, key, dialect)
        if found is None:
            assert not is_match
            continue
        is_found = nats_matches(found.tokens, encode_key(key, dialect))
        assert is_found == is_match if found.is_exact else is_found or not is_match
