"""Rows are selected by the bytes of their keys, as the bus delivers messages."""

import re

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sbus.pipeline.spark.task_rows import KeyFilter
from sbus.pipeline.store.schemas import GAP, MESSAGE
from sbus.protocol.text import to_text

SEGMENTS = st.sampled_from([b"a", b"ab", b"\xff", b"\xc3\xbc", b"\\", b"!", b"\n", b""])
KEYS = st.lists(SEGMENTS, min_size=1, max_size=4).map(b"/".join)
PATTERNS = st.lists(
    st.tuples(SEGMENTS.filter(lambda text: text != b"!"), st.sampled_from([b"", b"*"])),
    max_size=4,
).map(lambda parts: b"/".join(text + star for text, star in parts))


def batch(keys: list[bytes], kinds: list[str]) -> pa.RecordBatch:
    return pa.record_batch({"key": [to_text(key) for key in keys], "kind": kinds})


def expression(pattern: bytes) -> re.Pattern[bytes]:
    """docs/protocol.md, "Keys and patterns", as a regular expression over bytes."""
    body = b"/".join(
        re.escape(part.rstrip(b"*")) + (b"[^/]*" if b"*" in part else b"")
        for part in pattern.split(b"/")
    )
    tail = b".*" if not pattern or pattern.endswith(b"/") else b""
    return re.compile(body + tail, re.DOTALL)


@given(st.lists(KEYS, max_size=8), st.lists(PATTERNS, min_size=1, max_size=3))
def test_rows_that_match_any_pattern_are_selected(keys: list[bytes], patterns: list[bytes]) -> None:
    expressions = [expression(pattern) for pattern in patterns]
    expected = [
        to_text(key)
        for key in keys
        if b"!" not in key.split(b"/") and any(e.fullmatch(key) for e in expressions)
    ]
    found = KeyFilter(patterns).select(batch(keys, [MESSAGE] * len(keys)))
    assert found["key"].to_pylist() == expected


def test_secret_messages_match_only_secret_patterns_where_an_empty_id_is_any_id() -> None:
    keys = [b"!/cred/1/2/3/x", b"!/cred/1/9/3/x", b"!/cred/1//3/y", b"x"]
    rows = batch(keys, [MESSAGE] * len(keys))
    assert KeyFilter([b""]).select(rows)["key"].to_pylist() == ["x"]
    assert KeyFilter([b"!/cred/1//3/x"]).select(rows)["key"].to_pylist() == [
        "!/cred/1/2/3/x",
        "!/cred/1/9/3/x",
    ]


def test_a_gap_matches_every_subscription() -> None:
    rows = batch([b"", b"", b"a"], [GAP, MESSAGE, MESSAGE])
    assert KeyFilter([b"a"]).select(rows)["kind"].to_pylist() == [GAP, MESSAGE]


def test_cached_keys_match_in_the_next_batch() -> None:
    wanted = KeyFilter([b"a*"])
    for _ in range(2):
        assert wanted.select(batch([b"ab", b"b", b"ab"], [MESSAGE] * 3))["key"].to_pylist() == [
            "ab",
            "ab",
        ]
