"""Examples of keys, patterns and dialects."""

from hypothesis import strategies as st

from sbus.protocol.keys import DOT, SLASH

dialects = st.sampled_from([SLASH, DOT])

_pieces = st.sampled_from([b"a", b"b", b"*", b"/", b".", b"!", b"\xff"])
_small_texts = st.lists(_pieces, max_size=8).map(b"".join)
_long_texts = st.lists(
    st.one_of(_pieces, st.sampled_from([b"a" * 63, b"a" * 64, b"a" * 65, b"a" * 128])), max_size=5
).map(b"".join)
_deep_segments = st.lists(st.sampled_from([b"a", b"a", b"*", b"*", b"a*", b"aa", b""]), max_size=4)


def _deep_text(begin: list[bytes], repeated: bytes, count: int, end: list[bytes]) -> bytes:
    """Many equal segments between few others, in the slash dialect."""
    return b"/".join([*begin, *[repeated] * count, *end])


_deep_texts = st.builds(
    _deep_text,
    _deep_segments,
    st.sampled_from([b"a", b"*", b"a*"]),
    st.sampled_from([3, 4, 20]),
    _deep_segments,
)
texts = st.one_of(
    _small_texts, _small_texts, _deep_texts, _deep_texts, _long_texts, st.binary(max_size=10)
)
"""Keys and patterns that often share segments and prefixes, deep ones that part late or early,
long ones and any bytes at all."""
