"""Errors as one line on standard error, even if their text has several."""

import sys

from sbus.protocol.text import one_line


def report_error(text: str, *, command: str = "sbusd") -> None:
    """Print `command: text`, with everything unprintable escaped."""
    print(f"{command}: {one_line(text)}", file=sys.stderr)
