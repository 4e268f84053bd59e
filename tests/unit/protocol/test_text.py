"""Bytes as text: nothing acts on a terminal, and nothing is lost."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbus.protocol.text import from_text, to_text


@given(st.binary() | st.text().map(lambda text: text.encode(errors="surrogatepass")))
@example(b"\xc3")
@example(b"\\x41")
@example("\u202e\u200b\x1b[2J\n".encode())
def test_the_bytes_can_be_recovered_from_printable_text(data: bytes) -> None:
    text = to_text(data)
    assert text.isprintable()
    assert from_text(text) == data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"lamps/3", "lamps/3"),
        ("Küche/Licht".encode(), "Küche/Licht"),
        (b"a\\b", "a\\\\b"),
        (b"a\nb", "a\\x0ab"),
        (b"\xff\x00", "\\xff\\x00"),
    ],
)
def test_examples_of_text(data: bytes, text: str) -> None:
    assert to_text(data) == text


@pytest.mark.parametrize("text", ["\\", "a\\b", "\\x4", "\\xg0", "ok\\x41\\"])
def test_a_backslash_that_escapes_nothing_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="backslash"):
        from_text(text)


def test_escapes_may_be_in_capitals() -> None:
    assert from_text("\\xFF\\xfF") == b"\xff\xff"
