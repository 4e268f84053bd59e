"""Errors as one line on standard error, even if their text has several."""

import sys
from contextlib import suppress

from sbus.protocol.text import one_line


def report_error(text: str, *, command: str = "sbusd") -> None:
    """Print `command: text`, with everything unprintable escaped."""
    with suppress(BlockingIOError):  # without room it stays in the buffer, before the next line
        print(f"{command}: {one_line(text)}", file=sys.stderr)
