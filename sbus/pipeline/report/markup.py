"""Pieces of the page: tables, tiles, numbers; and the one place where foreign text becomes HTML.

Keys and names are other people's. `escaped` is for HTML, `plain` for plotly, which takes a small
part of HTML for markup wherever it shows text. Whatever is of type `Html` has been through one of
them or was written here; nothing else goes into a page.
"""

import html
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, NewType

from sbus.cli.terminal import units
from sbus.cli.terminal.error_output import one_line

Html = NewType("Html", str)
Cell = Html | str | float | int | datetime | None

UNKNOWN = Html('<span class="unknown">unknown</span>')
SHOWN_MAX = 60
"""Characters of a name; a pointer that rests on it shows more."""
BREAKABLE_FROM = 24
"""Characters; a shorter name stays on one line."""
TITLE_MAX = 400
LABEL_MAX = 34


def escaped(text: str) -> Html:
    """As it is, but no markup and nothing that turns the direction of writing."""
    return Html(html.escape(one_line(text)))


def plain(text: str) -> str:
    """For a label of a plot."""
    return html.escape(shortened(one_line(text), LABEL_MAX), quote=False)


def shortened(text: str, length: int) -> str:
    """The middle goes: keys differ at both ends."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def name(text: str | None) -> Html:
    """A key, a prefix or a program."""
    if text is None:
        return UNKNOWN
    shown = escaped(shortened(text, SHOWN_MAX)) or Html("&#8203;")
    title = f' title="{escaped(text[:TITLE_MAX])}"' if len(text) > SHOWN_MAX else ""
    style = "name long" if len(text) > BREAKABLE_FROM else "name"
    return Html(f'<bdi class="{style}"{title}>{shown}</bdi>')


def join(parts: Iterable[Html], between: str = "") -> Html:
    return Html(between.join(parts))


def number(value: float | None, digits: int = 0) -> Html:
    return UNKNOWN if value is None else Html(f"{value:,.{digits}f}")


def size(value: float | None) -> Html:
    return UNKNOWN if value is None else Html(units.size(value))


def moment(value: datetime | None, *, date: bool = False) -> Html:
    if value is None:
        return UNKNOWN
    return Html(value.strftime("%-d %b %Y, %H:%M:%S" if date else "%H:%M:%S"))


def share(part: float, whole: float) -> Html:
    return Html(f"{100 * part / whole:.1f} %" if whole else "")


def labelled(place: int, shown: Html) -> Html:
    """With the colour that it has in the plot beside."""
    return Html(f'<span class=labelled><i class="swatch c{place}"></i><span>{shown}</span></span>')


class Bar(NamedTuple):
    """A number, and how long its bar is, from 0 to 1."""

    shown: Html
    part: float


class Head(NamedTuple):
    """Of a column; a number stands at the right."""

    title: str
    right: bool = True


def table(heads: Sequence[Head], rows: Iterable[Sequence[Html | Bar]], caption: str = "") -> Html:
    """Rows of cells that are HTML already."""
    lines = ['<div class="scroll"><table>']
    if caption:
        lines.append(f"<caption>{caption}</caption>")
    titles = "".join(f"<th{_side(head)}>{head.title}</th>" for head in heads)
    lines.append(f"<thead><tr>{titles}</tr></thead><tbody>")
    for row in rows:
        cells = "".join(_cell(head, cell) for head, cell in zip(heads, row, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    lines.append("</tbody></table></div>")
    return Html("".join(lines))


def _side(head: Head) -> str:
    return " class=right" if head.right else ""


def _cell(head: Head, cell: Any) -> str:
    if isinstance(cell, Bar):
        width = 100 * min(1.0, max(0.0, cell.part))
        return f'<td class="right bar" style="--part:{width:.1f}%">{cell.shown}</td>'
    return f"<td{_side(head)}>{cell}</td>"


def tile(figure: str, label: str, more: Html | str = "", *, tone: str = "") -> Html:
    return Html(
        f'<div class="tile {tone}"><b>{figure}</b><span>{label}</span><small>{more}</small></div>'
    )


def nothing(sentence: str) -> Html:
    """Instead of an empty plot."""
    return Html(f"<p class=nothing>{sentence}</p>")
