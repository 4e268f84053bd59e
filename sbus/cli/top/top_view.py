"""A comparison of `sbusctl top` as lines of text."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from sbus.cli.terminal.tables import TITLE_STYLE, Field, fit, name_field, table, text
from sbus.cli.terminal.units import UNKNOWN, count, counted, duration, enumerated, size
from sbus.cli.terminal.user_names import user_name
from sbus.cli.top.loads import SORT_FIELDS, Sort, Top
from sbus.cli.views.clients_view import CLIENT_IDENTITY, shown_pattern, warned

SORT_LETTERS: dict[str, Sort] = {"i": "in", "b": "bytes", "o": "out", "l": "lost", "k": "backlog"}
KEY_SORTS = ("in", "bytes", "out")
"""The figures that are known of keys."""
OTHER_PREFIXES = "(other prefixes)"
SORTED_STYLE = "bold reverse"
"""Of the title of the column that rows are sorted by."""


def sort_letters(by: str) -> dict[str, Sort]:
    """The orders of such rows, by the letter that chooses each."""
    return {key: sort for key, sort in SORT_LETTERS.items() if by != "key" or sort in KEY_SORTS}


def top_lines(
    top: Top, width: int | None, height: int | None = None, *, keys: bool = False
) -> list[Text]:
    """Totals, the `keys` that can be pressed, and as many rows as there is room for."""
    total = f"{counted(len(top.rows), *_NOUNS[top.by])} in {duration(top.seconds)}: "
    total += ", ".join(
        f"{count(sum(getattr(row, SORT_FIELDS[name]) for row in top.rows))} {name}/s"
        for name in ("in", "out")
    )
    lines = [text(total, "bold")]
    if top.unanswered:
        missing = f"worker {enumerated(top.unanswered)} did not answer: some are missing"
        lines.append(text(missing, "yellow"))
    if top.missed:
        missing = f"{counted(top.missed, 'message')} came too fast and are not counted"
        lines.append(text(missing, "yellow"))
    if keys:
        choices = "  ".join(f"{letter} {name}" for letter, name in sort_letters(top.by).items())
        lines.append(text(f"q quit  sort by: {choices}", "dim"))
    lines = [*(fit(line, width) for line in lines), Text()]
    # The titles follow, and the cursor needs a line of the screen as well.
    room = None if height is None else max(0, height - len(lines) - 2)
    return [*lines, *table(_fields(top), top.rows[:room], width)]


_NOUNS = {
    "client": ("client",),
    "user": ("user",),
    "worker": ("worker",),
    "key": ("prefix", "prefixes"),
}
_FIGURES: dict[Sort, tuple[str, Any]] = {
    "in": ("IN/S", lambda row: count(row.messages_in_per_second)),
    "bytes": ("BYTES/S", lambda row: size(row.bytes_in_per_second)),
    "out": ("OUT/S", lambda row: count(row.delivered_per_second)),
    "lost": ("LOST/S", lambda row: warned(row.discarded_per_second)),
    "backlog": ("BACKLOG", lambda row: warned(row.backlog)),
}
_CLIENTS: Field[Any] = Field("CLIENTS", lambda row: count(row.clients))
_IDENTITY: dict[str, tuple[Sequence[Field[Any]], Sequence[Field[Any]]]] = {
    "client": (CLIENT_IDENTITY[:-1], CLIENT_IDENTITY[-1:]),
    "user": ([name_field("USER", lambda row: user_name(row.uid)), _CLIENTS], []),
    "key": ([], [name_field("PREFIX", lambda row: _shown_prefix(row.prefix))]),
    "worker": (
        [
            Field("WORKER", lambda row: str(row.worker)),
            Field("PID", lambda row: str(row.pid or UNKNOWN)),
            Field("CPU", lambda row: f"{row.cpu_percent:.0f}%"),
            _CLIENTS,
        ],
        [],
    ),
}
"""What identifies a row, before and after its figures."""


def _fields(top: Top) -> list[Field[Any]]:
    before, after = _IDENTITY[top.by]
    figures = [
        Field(title, shown, style=SORTED_STYLE if sort == top.sort else TITLE_STYLE)
        for sort, (title, shown) in _FIGURES.items()
        if sort in sort_letters(top.by).values()
    ]
    return [*before, *figures, *after]


def _shown_prefix(prefix: str | None) -> str:
    return OTHER_PREFIXES if prefix is None else shown_pattern(prefix)
