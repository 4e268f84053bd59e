"""Errors as one line on standard error, whatever their text holds."""

import sys


def report_error(text: str, *, command: str = "sbusd") -> None:
    """Print `command: text`, with everything unprintable escaped."""
    print(f"{command}: {one_line(text)}", file=sys.stderr)


def one_line(text: str) -> str:
    """The text with everything unprintable escaped, so that nothing acts on a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
