"""Tables of text, laid out for a terminal or for a program.

On a terminal, a table is never wider than the screen: optional columns disappear, the least
important first, then flexible ones are shortened and end in `…`. Where that is not enough, more
columns disappear, from the right, and before the flexible ones. For a program, a
table is as wide as it needs to be, and each cell is one word: a space within a cell is shown as
`\\x20`, except in the last column. An empty cell is a `-`.

Cells hold text that other users chose. It is never interpreted as markup, and characters that are
not printable are escaped, even if that was done before.
"""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from sbus.protocol.text import one_line

GAP = "  "
ELLIPSIS = "…"
COMFORTABLE_WIDTH = 15
"""Optional columns disappear before a flexible one gets narrower than this."""
NARROW_WIDTH = 7
"""And all others before it gets narrower than this."""
TITLE_STYLE = "bold"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """A title of one word, and how the column behaves."""

    title: str
    _: KW_ONLY
    right: bool = True
    """Numbers are aligned to the right."""
    flexible: bool = False
    """It may be shortened."""
    rank: int = 0
    """0 for one that stays; the highest rank disappears first."""
    style: str = TITLE_STYLE
    """Of the title."""


class Cell(NamedTuple):
    """A text and its style, as rich names it."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Field(Column, Generic[T]):
    """A column, and its cell for an item."""

    cell: Callable[[T], str | Cell]


def name_field(title: str, cell: Callable[[T], str | Cell]) -> Field[T]:
    """A field of names, which may be long."""
    return Field(title, cell, right=False, flexible=True)


def table(fields: Sequence[Field[T]], items: Iterable[T], width: int | None) -> list[Text]:
    """A title line and a line for each item."""
    rows = [[field.cell(item) for field in fields] for item in items]
    return layout(fields, rows, width)


def text(words: str, style: str = "") -> Text:
    """A line of any text, safe and never wrapped."""
    return Text(one_line(words), style=style, no_wrap=True, overflow="ellipsis", end="\n")


def paragraph(words: str, width: int | None) -> list[Text]:
    """A sentence, wrapped between words if it is wider than the terminal."""
    whole = one_line(words)
    parts = [whole] if width is None else textwrap.wrap(whole, width) or [""]
    return [fit(text(part), width) for part in parts]


def fit(line: Text, width: int | None) -> Text:
    """The line, cut at the edge of the terminal."""
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def layout(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], width: int | None
) -> list[Text]:
    """A title line and the rows, for a terminal of this width or, if None, for a program."""
    titles = [Cell(column.title, column.style) for column in columns]
    lines = [titles, *([_clean(cell) for cell in row] for row in rows)]
    if width is None:
        lines = [[*map(_one_word, line[:-1]), line[-1]] for line in lines]
    widths = [max(cell_len(line[i].text) for line in lines) for i in range(len(columns))]
    if width is not None:
        shown = _choose(columns, widths, width)
        columns, widths = [columns[i] for i in shown], [widths[i] for i in shown]
        lines = [[line[i] for i in shown] for line in lines]
        _shrink(columns, widths, width)
    return [fit(_line(columns, line, widths), width) for line in lines]


def _clean(cell: str | Cell) -> Cell:
    cell = Cell(cell) if isinstance(cell, str) else cell
    return Cell(one_line(cell.text) or "-", cell.style)


def _one_word(cell: Cell) -> Cell:
    return Cell(cell.text.replace(" ", "\\x20"), cell.style)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _choose(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """The columns that fit if the flexible ones are shortened; at least one."""
    shown = list(range(len(columns)))
    while len(shown) > 1:
        last = max(shown, key=lambda i: (columns[i].rank, not columns[i].flexible, i))
        least = COMFORTABLE_WIDTH if columns[last].rank else NARROW_WIDTH
        needed = [min(widths[i], least) if columns[i].flexible else widths[i] for i in shown]
        if _total(needed) <= width:
            break
        shown.remove(last)
    return shown


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Shorten the widest flexible column, again and again, until the table fits."""
    flexible = [i for i, column in enumerate(columns) if column.flexible]
    for _ in range(_total(widths) - width):
        widest = max(flexible, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= 1:
            break
        widths[widest] -= 1


def _line(columns: Sequence[Column], cells: Sequence[Cell], widths: Sequence[int]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis", end="\n")
    for i, (column, cell, width) in enumerate(zip(columns, cells, widths, strict=True)):
        shown = shorten(cell.text, width)
        pad = " " * (width - cell_len(shown))
        line.append(GAP if i else "")
        line.append(pad if column.right else "")
        line.append(shown, style=cell.style or None)
        line.append("" if column.right or i == len(columns) - 1 else pad)
    return line


def shorten(words: str, width: int) -> str:
    """The text, or as much of it as fits before a `…`."""
    if cell_len(words) <= width:
        return words
    return set_cell_size(words, width - 1).rstrip() + ELLIPSIS
