"""Tables fit a terminal, are made of words for a program, and are safe whatever they hold."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from sbus.cli.terminal.tables import Cell, Column, fit, layout, paragraph, shorten, text

NAME = Column("NAME", right=False, flexible=True)
COLUMNS = [Column("NUMBER"), NAME, Column("LAST", right=False, flexible=True)]


def plain(columns: list[Column], rows: list[list[str | Cell]], width: int | None) -> list[str]:
    return [line.plain for line in layout(columns, rows, width)]


def test_numbers_stand_at_the_right_and_words_at_the_left() -> None:
    assert plain(COLUMNS, [["1", "a", "x"], ["23456789", "bcdefg", "y z"]], None) == [
        "  NUMBER  NAME    LAST",
        "       1  a       x",
        "23456789  bcdefg  y z",
    ]


def test_a_program_finds_a_word_in_each_column_and_the_rest_in_the_last() -> None:
    (_, line) = plain(COLUMNS, [["", "Web Content", "one two"]], None)
    assert line.split(maxsplit=2) == ["-", "Web\\x20Content", "one two"]


def test_the_widest_that_can_be_is_shortened() -> None:
    rows: list[list[str | Cell]] = [["1", "n" * 30, "l" * 20]]
    assert plain(COLUMNS, rows, 40) == [
        "NUMBER  NAME             LAST",
        f"     1  {'n' * 14}…  {'l' * 14}…",
    ]


def test_columns_go_by_their_rank_before_anything_is_cut_short() -> None:
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


def test_wide_characters_count_as_they_are_shown() -> None:
    lines = plain(COLUMNS, [["1", "漢字", "x"], ["2", "ascii", "y"]], 80)
    assert {cell_len(line.rpartition("  ")[0]) for line in lines[1:]} == {len("NUMBER  ascii")}
    assert shorten("漢字漢字", 6) == "漢字…"


def test_markup_is_text_and_styles_are_not_in_it() -> None:
    (_, line) = layout(COLUMNS, [["[bold]1[/bold]", Cell("[red]", "yellow"), ":smile:"]], 80)
    assert line.plain.split() == ["[bold]1[/bold]", "[red]", ":smile:"]
    assert [str(span.style) for span in line.spans] == ["yellow"]


def test_what_is_not_printable_is_escaped_again() -> None:
    (_, line) = plain(COLUMNS, [["\x1b[2J", "\u202eexe.gpj", "a\nb\x9b"]], None)
    assert line.split() == ["\\x1b[2J", "\\u202eexe.gpj", "a\\nb\\x9b"]
    assert text("\r\x07").plain == "\\r\\x07"


def test_a_sentence_is_broken_between_words() -> None:
    assert [line.plain for line in paragraph("one two three", 8)] == ["one two", "three"]
    assert [line.plain for line in paragraph("one two three", None)] == ["one two three"]


words = st.text() | st.binary().map(lambda data: data.decode("latin-1"))


@given(st.lists(st.lists(words, min_size=3, max_size=3), max_size=4), st.integers(1, 100))
def test_no_line_is_wider_than_the_terminal_and_all_is_printable(
    rows: list[list[str | Cell]], width: int
) -> None:
    lines = plain(COLUMNS, rows, width)
    assert len(lines) == len(rows) + 1
    for line in lines:
        assert cell_len(line) <= width
        assert line.isprintable()


@given(words, st.integers(1, 100))
def test_no_sentence_is_wider_either(sentence: str, width: int) -> None:
    for line in [*paragraph(sentence, width), fit(text(sentence), width)]:
        assert cell_len(line.plain) <= width
        assert line.plain.isprintable()
