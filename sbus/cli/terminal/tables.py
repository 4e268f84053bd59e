"""Tables of text, laid out for a width or for a program.

For a terminal, a table is never wider than it: of columns that may go the least important go
first, those that can be shortened end in `…`, and what still does not fit is cut. For anything
else it is as wide as it needs to be, and made of words: a blank within a cell is shown as `\\x20`,
except in the last column. An empty cell is a `-`.

Cells hold other people's text. It is never taken for markup, and what is not printable is escaped
again, whoever should have done it. This module does not know what the columns mean, and prints
nothing.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from sbus.cli.terminal.error_output import one_line

GAP = "  "
ELLIPSIS = "…"
COMFORTABLE_WIDTH = 15
"""A column that can be shortened is not cut below this for one that may go."""
TITLE_STYLE = "bold"


@dataclass(frozen=True, slots=True)
class Column:
    """A title of one word, and how the column behaves."""

    title: str
    right: bool = True
    """Numbers stand at the right."""
    flexible: bool = False
    """It may be shortened."""
    rank: int = 0
    """0 stays; the highest goes first."""
    style: str = TITLE_STYLE
    """Of the title."""


class Cell(NamedTuple):
    """A text and rich's name of how it looks."""

    text: str
    style: str = ""


def text(words: str, style: str = "") -> Text:
    """A line of anything, safe and never wrapped."""
    return Text(one_line(words), style=style, no_wrap=True, overflow="ellipsis", end="\n")


def paragraph(words: str, width: int | None) -> list[Text]:
    """A sentence, broken between words where a terminal is too narrow for it."""
    whole = one_line(words)
    parts = [whole] if width is None else textwrap.wrap(whole, width) or [""]
    return [fit(text(part), width) for part in parts]


def fit(line: Text, width: int | None) -> Text:
    """The line, cut where the terminal ends."""
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def layout(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], width: int | None
) -> list[Text]:
    """The table's lines, its titles first; `width` in cells of a terminal, None for a program."""
    cells = [[_clean(cell) for cell in row] for row in rows]
    if width is None:
        cells = [[*map(_one_word, row[:-1]), row[-1]] for row in cells]
    widths = [
        max([cell_len(column.title), *(cell_len(row[i].text) for row in cells)])
        for i, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    if width is not None:
        shown = _choose(columns, widths, width)
        _shrink(columns, widths, shown, width)
    titles = [Cell(column.title, column.style) for column in columns]
    return [_line(columns, row, widths, shown, width) for row in [titles, *cells]]


def _clean(cell: str | Cell) -> Cell:
    cell = Cell(cell) if isinstance(cell, str) else cell
    return Cell(one_line(cell.text) or "-", cell.style)


def _one_word(cell: Cell) -> Cell:
    return Cell(cell.text.replace(" ", "\\x20"), cell.style)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _choose(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Which columns there is room for when those that can be shortened are."""
    needed = [
        min(natural, COMFORTABLE_WIDTH) if column.flexible else natural
        for column, natural in zip(columns, widths, strict=True)
    ]
    shown = list(range(len(columns)))
    while _total([needed[i] for i in shown]) > width:
        last = max(shown, key=lambda i: columns[i].rank)
        if not columns[last].rank:
            break
        shown.remove(last)
    return shown


def _shrink(columns: Sequence[Column], widths: list[int], shown: list[int], width: int) -> None:
    """Shorten the widest of what can be, until it fits or nothing is left to take."""
    flexible = [i for i in shown if columns[i].flexible]
    excess = _total([widths[i] for i in shown]) - width
    while excess > 0 and flexible:
        widest = max(flexible, key=lambda i: widths[i])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
        excess -= 1


def _line(
    columns: Sequence[Column],
    row: Sequence[Cell],
    widths: Sequence[int],
    shown: Sequence[int],
    width: int | None,
) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis", end="\n")
    for i in shown:
        if i != shown[0]:
            line.append(GAP)
        cell = shorten(row[i].text, widths[i])
        pad = " " * (widths[i] - cell_len(cell))
        right = columns[i].right
        line.append(pad if right else "")
        line.append(cell, style=row[i].style or None)
        line.append("" if right or i == shown[-1] else pad)
    return fit(line, width)


def shorten(words: str, width: int) -> str:
    """The text, or as much of it as there is room for before a `…`."""
    if cell_len(words) <= width:
        return words
    return set_cell_size(words, width - 1).rstrip() + ELLIPSIS
