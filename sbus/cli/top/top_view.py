"""What `top` shows to people, and to what it listens while it does.

A screen that is repainted, on which a letter chooses what rows are sorted by and `q` ends it; where
there is no terminal, one table behind the other. This module does not know where rows come from.
"""

import os
import select
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.text import Text

from sbus.cli.sbusctl.answers import write_json
from sbus.cli.terminal.screen import Repainting, Screen
from sbus.cli.terminal.tables import TITLE_STYLE, Cell, Column, fit, layout, text
from sbus.cli.terminal.units import UNKNOWN, count, counted, duration, enumerated, size
from sbus.cli.terminal.user_names import user_name
from sbus.cli.top.top import (
    COLUMNS,
    ClientLoad,
    FullLoad,
    KeyLoad,
    Load,
    Look,
    Sort,
    Source,
    Top,
    UserLoad,
    WorkerLoad,
    ordered,
)
from sbus.cli.views.clients_view import shown_pattern
from sbus.unix.standard_streams import INPUT

LETTERS: dict[str, Sort] = {"i": "in", "b": "bytes", "o": "out", "l": "lost", "k": "backlog"}
QUIT = "q"
KEY_SORTS = ("in", "bytes", "out")
"""What is known of keys."""
OTHERS = "(other prefixes)"
SORTED_STYLE = "bold reverse"
"""Of the title of the column that rows are sorted by."""


class TopPlan(NamedTuple):
    """How rows are sorted at first, how long a look takes and how many there are; None: no end."""

    sort: Sort
    interval_seconds: float
    looks: int | None


def run_top(source: Source, plan: TopPlan) -> None:
    """Show tables as planned, or until `q`."""
    screen = Screen()
    with _listening(screen) as listens, screen.repainting(whole=plan.looks is None) as view:
        _run(source, plan, screen, view, listens)


def run_top_as_json(source: Source, plan: TopPlan) -> None:
    """Print a `Top` on each line."""
    source.look()
    done = 0
    while plan.looks is None or done < plan.looks:
        _wait(source, time.monotonic() + plan.interval_seconds, listens=False)
        look = source.look()
        assert look is not None
        write_json(_top(source, look, plan.sort))
        done += 1


def _run(source: Source, plan: TopPlan, screen: Screen, view: Repainting, listens: bool) -> None:
    sort = plan.sort
    look = source.look()
    done = 0
    if screen.is_terminal:
        view.show([text(f"looking for {duration(plan.interval_seconds)} ...")])
    while plan.looks is None or done < plan.looks:
        until = time.monotonic() + plan.interval_seconds
        while key := _wait(source, until, listens=listens):
            if key == QUIT:
                return
            sort = _letters(source.by).get(key, sort)
            if look is not None:
                view.show(_lines(_top(source, look, sort), screen, listens))
        look = source.look()
        assert look is not None
        view.show(_lines(_top(source, look, sort), screen, listens))
        done += 1


def _letters(by: str) -> dict[str, Sort]:
    return {key: sort for key, sort in LETTERS.items() if by != "key" or sort in KEY_SORTS}


def _wait(source: Source, until: float, *, listens: bool) -> str:
    """Let the source receive until then, or until a key is pressed, which is returned."""
    while (left_seconds := until - time.monotonic()) > 0:
        descriptors = [source.fileno(), INPUT if listens else None]
        ready, _, _ = select.select(
            [fd for fd in descriptors if fd is not None], [], [], left_seconds
        )
        if listens and INPUT in ready:
            # A terminal that is gone ends it, too.
            return os.read(INPUT, 64).decode(errors="replace")[:1] or QUIT
        if ready:
            source.receive()
    return ""


@contextmanager
def _listening(screen: Screen) -> Iterator[bool]:
    """Have every key at once and do not show it; whether there is somebody to press one."""
    if not (screen.is_terminal and os.isatty(INPUT)):
        yield False
        return
    before = termios.tcgetattr(INPUT)
    try:
        tty.setcbreak(INPUT)
        yield True
    finally:
        termios.tcsetattr(INPUT, termios.TCSADRAIN, before)


def _top(source: Source, look: Look, sort: Sort) -> Top:
    return Top(
        by=source.by,
        sort=sort,
        seconds=look.seconds,
        rows=ordered(look.rows, sort),
        unanswered=look.unanswered,
        missed=look.missed,
    )


# -- lines -----------------------------------------------------------------------------------------
def _lines(top: Top, screen: Screen, listens: bool) -> list[Text]:
    return top_lines(top, screen.width, screen.height, keys=listens)


def top_lines(
    top: Top, width: int | None, height: int | None = None, *, keys: bool = False
) -> list[Text]:
    """All in one line, what the `keys` do, and a line for each row that there is room for."""
    total = f"{counted(len(top.rows), *_NOUNS[top.by])} in {duration(top.seconds)}: "
    total += ", ".join(
        f"{count(sum(getattr(row, COLUMNS[name]) for row in top.rows))} {name}/s"
        for name in ("in", "out")
    )
    lines = [fit(text(total, "bold"), width)]
    if top.unanswered:
        missing = f"worker {enumerated(top.unanswered)} did not answer: some are missing"
        lines.append(fit(text(missing, "yellow"), width))
    if top.missed:
        missing = f"{counted(top.missed, 'message')} came too fast and are not counted"
        lines.append(fit(text(missing, "yellow"), width))
    if keys:
        choices = "  ".join(f"{letter} {name}" for letter, name in _letters(top.by).items())
        lines.append(fit(text(f"q quit  sort by: {choices}", "dim"), width))
    lines.append(Text())
    # Below them come the titles, and the cursor stays on the screen as well.
    room = None if height is None else max(0, height - len(lines) - 2)
    return [*lines, *layout(_columns(top), [_row(row) for row in top.rows[:room]], width)]


def _columns(top: Top) -> list[Column]:
    measures = [
        Column(title, style=SORTED_STYLE if sort == top.sort else TITLE_STYLE)
        for title, sort in _MEASURES.items()
        if top.by != "key" or sort in KEY_SORTS
    ]
    before, after = _NAMED[top.by]
    return [*before, *measures, *after]


_MEASURES: dict[str, Sort] = {
    "IN/S": "in",
    "BYTES/S": "bytes",
    "OUT/S": "out",
    "LOST/S": "lost",
    "BACKLOG": "backlog",
}
_NOUNS = {
    "client": ("client",),
    "user": ("user",),
    "worker": ("worker",),
    "key": ("prefix", "prefixes"),
}
_USER = Column("USER", right=False, flexible=True)
_NAMED: dict[str, tuple[list[Column], list[Column]]] = {
    "client": (
        [Column("CLIENT"), _USER, Column("PID"), Column("WORKER", rank=1)],
        [Column("PROGRAM", right=False, flexible=True)],
    ),
    "user": ([_USER, Column("CLIENTS")], []),
    "key": ([], [Column("PREFIX", right=False, flexible=True)]),
    "worker": ([Column("WORKER"), Column("PID"), Column("CPU"), Column("CLIENTS")], []),
}
"""The columns that say who it is, before and behind the figures."""


def _row(row: Load) -> list[str | Cell]:
    figures: list[str | Cell] = [
        count(row.messages_in_per_second),
        size(row.bytes_in_per_second),
        count(row.delivered_per_second),
    ]
    if isinstance(row, FullLoad):
        lost, backlog = row.discarded_per_second, row.backlog
        figures.append(Cell(count(lost), "yellow" if lost else ""))
        figures.append(Cell(count(backlog), "yellow" if backlog else ""))
    if isinstance(row, ClientLoad):
        who = [str(row.client), user_name(row.uid), str(row.pid), str(row.worker)]
        return [*who, *figures, row.program]
    if isinstance(row, KeyLoad):
        return [*figures, OTHERS if row.prefix is None else shown_pattern(row.prefix)]
    if isinstance(row, UserLoad):
        return [user_name(row.uid), count(row.clients), *figures]
    assert isinstance(row, WorkerLoad)
    cpu = f"{row.cpu_percent:.0f}%"
    return [str(row.worker), str(row.pid or UNKNOWN), cpu, count(row.clients), *figures]
