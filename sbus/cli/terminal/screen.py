"""Standard output as a screen: a terminal, or a file or pipe that a program reads.

A terminal has a width, and colours unless `NO_COLOR` is set; anything else gets plain text of any
width. Both get UTF-8.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sbus.cli.terminal.ending_signals import exiting_on_signals
from sbus.cli.terminal.standard_output import write
from sbus.unix.standard_streams import OUTPUT

ShowLines = Callable[[Sequence[Text]], None]


class Screen:
    """Where a verb shows its lines. `width` and `height` are None unless it is a terminal."""

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
        """Print lines below those before."""
        if self.is_terminal:
            self._console.print(_together(lines), soft_wrap=True)
        else:
            write("".join(f"{line.plain.rstrip()}\n" for line in lines).encode())

    @contextmanager
    def repainting(self, *, whole: bool) -> Iterator[ShowLines]:
        """A function that shows lines in place of those before: on the `whole` screen, which is
        restored at the end, or below the cursor. Without a terminal they follow each other."""
        if not self.is_terminal or self._console.is_dumb_terminal:
            is_first = True

            def show_below(lines: Sequence[Text]) -> None:
                nonlocal is_first
                self.show(lines if is_first else [Text(), *lines])
                is_first = False

            yield show_below
            return
        with (
            exiting_on_signals(),
            Live(
                console=self._console,
                screen=whole,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            ) as live,
        ):
            yield lambda lines: live.update(_together(lines), refresh=True)


def _together(lines: Sequence[Text]) -> Text:
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


class _Console(Console):
    """Raises the error that `exit_status.py` handles, instead of exiting."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
