"""Standard output: a terminal that people look at, or a file or pipe that a program reads.

A terminal has a width, and colours unless `NO_COLOR` is set; anything else gets plain text as wide
as it comes. Both get UTF-8. This module does not know what is shown.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sbus.cli.terminal.exit_status import write
from sbus.unix.standard_streams import OUTPUT


class Screen:
    """Where a verb shows its lines. `width` and `height` are None where it is no terminal."""

    def __init__(self) -> None:
        self.is_terminal = os.isatty(OUTPUT)
        self._console = _Console(
            file=os.fdopen(OUTPUT, "w", encoding="utf-8", closefd=False),
            force_terminal=self.is_terminal,
            highlight=False,
            markup=False,
            emoji=False,
        )

    @property
    def width(self) -> int | None:
        return self._console.width if self.is_terminal else None

    @property
    def height(self) -> int | None:
        return self._console.height if self.is_terminal else None

    def show(self, lines: Sequence[Text]) -> None:
        """Print the lines below what is there."""
        if self.is_terminal:
            self._console.print(_together(lines), soft_wrap=True)
        else:
            write("".join(f"{line.plain.rstrip()}\n" for line in lines).encode())

    @contextmanager
    def repainting(self, *, whole: bool) -> "Iterator[Repainting]":
        """Show lines in place of those before: on the `whole` screen, which is given back in the
        end, or where the cursor is."""
        if not self.is_terminal or self._console.is_dumb_terminal:
            yield Repainting(self, None)
            return
        with (
            _ended_in_order(),
            Live(
                console=self._console,
                screen=whole,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            ) as live,
        ):
            yield Repainting(self, live)


class Repainting:
    """Lines that are shown again and again."""

    def __init__(self, screen: Screen, live: Live | None) -> None:
        self._screen = screen
        self._live = live
        self._is_first = True

    def show(self, lines: Sequence[Text]) -> None:
        """Show these in place of the last; where nothing can be replaced, behind them."""
        if self._live is not None:
            self._live.update(_together(lines), refresh=True)
            return
        blank = [] if self._is_first else [Text()]
        self._is_first = False
        self._screen.show([*blank, *lines])


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Signals that end a program leave the block first, so that the terminal is given back."""

    def end(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    ending = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(signum, end) for signum in ending]
    try:
        yield
    finally:
        for signum, handler in zip(ending, before, strict=True):
            signal.signal(signum, handler)


def _together(lines: Sequence[Text]) -> Text:
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


class _Console(Console):
    """Leaves it to `exit_status.py` what happens when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
