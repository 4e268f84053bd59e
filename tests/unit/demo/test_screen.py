"""The demo's lines: 80 columns, and nothing in them that a terminal acts upon."""

from hypothesis import given
from hypothesis import strategies as st

from sbus.demo.screen import COLUMNS, fit, message_line, printable, table

PRINTABLE_ASCII = {chr(code) for code in range(0x20, 0x7F)}


@given(st.binary())
def test_whatever_was_published_is_shown_as_printable_ascii(text: bytes) -> None:
    assert set(printable(text)) <= PRINTABLE_ASCII


def test_escapes_are_spelled_out() -> None:
    assert printable(b"a \x1b[2J\r\n\xff\x7f") == "a \\x1b[2J\\x0d\\x0a\\xff\\x7f"


@given(st.binary(), st.binary(), st.integers(0, 10**12), st.floats(0, 1e6))
def test_a_message_is_one_line_that_fits(
    key: bytes, payload: bytes, new: int, seconds: float
) -> None:
    line = message_line(seconds, "everything", new, key, payload)
    assert len(line) <= COLUMNS
    assert set(line) <= PRINTABLE_ASCII


def test_the_end_of_a_long_payload_is_shown() -> None:
    line = message_line(1.0, "log", 3, b"log/x/line", b"begin" + b"." * 80 + b"end")
    assert len(line) == COLUMNS
    assert "begin" not in line
    assert line.startswith(" 1.00  log           +3  log/x/line  ")
    assert line.endswith(".end")


def test_a_cut_is_visible() -> None:
    assert fit("abcdefgh", 8) == "abcdefgh"
    assert fit("abcdefghi", 8) == "abcde..."


def test_numbers_stand_at_the_right_of_their_column() -> None:
    rows = [["what", "n"], ["a", "10"], ["bcdef", "9"]]
    assert table(rows, right=frozenset({1})) == [
        "what    n",
        "-----  --",
        "a      10",
        "bcdef   9",
    ]
