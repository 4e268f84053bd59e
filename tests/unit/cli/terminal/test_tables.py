"""Tables fit a terminal, have one word in a cell for a program, and are safe."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sbus.cli.terminal.tables import Cell, Column, fit, layout, paragraph, shorten, text

NAME = Column("NAME", right=False, flexible=True)
COLUMNS = [Column("NUMBER"), NAME, Column("LAST", right=False, flexible=True)]


def plain(columns: list[Column], rows: list[list[str | Cell]], width: int | None) -> list[str]:
    return [line.plain for line in layout(columns, rows, width)]


def test_numbers_are_aligned_right_and_words_left() -> None:
    assert plain(COLUMNS, [["1", "a", "x"], ["23456789", "bcdefg", "y z"]], None) == [
        "  NUMBER  NAME    LAST",
        "       1  a       x",
        "23456789  bcdefg  y z",
    ]


def test_for_a_program_each_cell_but_the_last_is_one_word() -> None:
    (_, line) = plain(COLUMNS, [["", "Web Content", "one two"]], None)
    assert line.split(maxsplit=2) == ["-", "Web\\x20Content", "one two"]


def test_the_widest_flexible_column_is_shortened() -> None:
    rows: list[list[str | Cell]] = [["1", "n" * 30, "l" * 20]]
    assert plain(COLUMNS, rows, 40) == [
        "NUMBER  NAME             LAST",
        f"     1  {'n' * 14}…  {'l' * 14}…",
    ]


def test_optional_columns_disappear_by_rank_before_any_is_shortened() -> None:
    columns = [Column("A"), Column("B", rank=1), Column("C", rank=2), NAME]
    rows: list[list[str | Cell]] = [["1", "2", "3", "n" * 30]]
    for width, titles in (
        (24, ["A", "B", "C", "NAME"]),
        (23, ["A", "B", "NAME"]),
        (20, ["A", "NAME"]),
        (10, ["A", "NAME"]),
    ):
        lines = plain(columns, rows, width)
        assert lines[0].split() == titles
        assert all(len(line) <= width for line in lines)


def test_in_a_narrow_terminal_columns_disappear_from_the_right_but_flexible_ones_last() -> None:
    columns = [NAME, Column("A"), Column("BB"), Column("REST", flexible=True)]
    rows: list[list[str | Cell]] = [["n" * 30, "1", "2", "r" * 30]]
    for width, titles in (
        (23, ["NAME", "A", "BB", "REST"]),
        (22, ["NAME", "A", "REST"]),
        (18, ["NAME", "REST"]),
        (15, ["NAME"]),
        (1, ["…"]),
    ):
        lines = plain(columns, rows, width)
        assert lines[0].split() == titles
        assert all(len(line) <= width for line in lines)


def test_wide_characters_take_two_cells() -> None:
    lines = plain(COLUMNS, [["1", "漢字", "x"], ["2", "ascii", "y"]], 80)
    assert {cell_len(line.rpartition("  ")[0]) for line in lines[1:]} == {len("NUMBER  ascii")}
    assert shorten("漢字漢字", 6) == "漢字…"


def test_a_sentence_is_wrapped_between_words() -> None:
    assert [line.plain for line in paragraph("one two three", 8)] == ["one two", "three"]
    assert [line.plain for line in paragraph("one two three", None)] == ["one two three"]


words = st.text() | st.binary().map(lambda data: data.decode("latin-1"))


@given(st.lists(st.lists(words, min_size=3, max_size=3), max_size=4), st.integers(1, 100))
def test_lines_are_printable_and_fit_the_terminal(rows: list[list[str | Cell]], width: int) -> None:
    lines = plain(COLUMNS, rows, width)
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert cell_len(line) <= width
        assert line.isprintable()


@given(words, st.integers(1, 100))
def test_sentences_are_printable_and_fit_the_terminal(sentence: str, width: int) -> None:
    for line in [*paragraph(sentence, width), fit(text(sentence), width)]:
        assert cell_len(line.plain) <= width
        assert line.plain.isprintable()
