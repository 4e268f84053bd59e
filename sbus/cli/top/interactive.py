"""`sbusctl top` at a terminal: a screen that is repainted, and letters that choose the order.

Without a terminal, one table or JSON object is printed after the other.
"""

import itertools
import os
import select
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sbus.cli.terminal.screen import Screen
from sbus.cli.terminal.standard_output import write_json
from sbus.cli.terminal.tables import text
from sbus.cli.terminal.units import duration
from sbus.cli.top.loads import Sort, Top, sorted_by
from sbus.cli.top.sources import Source
from sbus.cli.top.top_view import sort_letters, top_lines
from sbus.unix.standard_streams import INPUT

QUIT = "q"


class TopPlan(NamedTuple):
    """The first order, the seconds between looks, and their number; None for no end."""

    sort: Sort
    interval_seconds: float
    looks: int | None


def run_top(source: Source, plan: TopPlan, *, as_json: bool) -> None:
    """Show the comparisons that are planned, or until `q`."""
    if as_json:
        _run(source, plan, write_json, reads_keys=False)
        return
    screen = Screen()
    with (
        _reading_keys(screen) as reads_keys,
        screen.repainting(whole=plan.looks is None) as show_lines,
    ):
        if screen.is_terminal:
            show_lines([text(f"looking for {duration(plan.interval_seconds)} ...")])

        def show(top: Top) -> None:
            show_lines(top_lines(top, screen.width, screen.height, keys=reads_keys))

        _run(source, plan, show, reads_keys=reads_keys)


def _run(source: Source, plan: TopPlan, show: Callable[[Top], None], *, reads_keys: bool) -> None:
    sort = plan.sort
    top = source.look()
    for _ in itertools.count() if plan.looks is None else range(plan.looks):
        until = time.monotonic() + plan.interval_seconds
        while key := _wait(source, until, reads_keys=reads_keys):
            if key == QUIT:
                return
            sort = sort_letters(source.by).get(key, sort)
            if top is not None:
                show(sorted_by(top, sort))
        top = source.look()
        assert top is not None
        show(sorted_by(top, sort))


def _wait(source: Source, until: float, *, reads_keys: bool) -> str:
    """Let the source receive until then, or until a key is pressed, which is returned."""
    while (left_seconds := until - time.monotonic()) > 0:
        poll = select.poll()
        for number in (source.fileno(), INPUT if reads_keys else None):
            if number is not None:
                poll.register(number, select.POLLIN)
        ready = [number for number, _ in poll.poll(left_seconds * 1000)]
        if reads_keys and INPUT in ready:
            # At the end of input the terminal is gone.
            return os.read(INPUT, 64).decode(errors="replace")[:1] or QUIT
        if ready:
            source.receive()
    return ""


@contextmanager
def _reading_keys(screen: Screen) -> Iterator[bool]:
    """Get every key at once without an echo; False where there is no keyboard."""
    if not (screen.is_terminal and os.isatty(INPUT)):
        yield False
        return
    before = termios.tcgetattr(INPUT)
    try:
        tty.setcbreak(INPUT)
        yield True
    finally:
        termios.tcsetattr(INPUT, termios.TCSADRAIN, before)
