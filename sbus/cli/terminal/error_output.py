"""How a command says what went wrong: one line on standard error, whatever the text holds.

Knows neither errors nor exit statuses.
"""

import sys


def report_error(text: str, *, command: str = "sbusd") -> None:
    """Print `command: text`, with everything unprintable escaped, so that it stays one line."""
    print(f"{command}: {one_line(text)}", file=sys.stderr)


def one_line(text: str) -> str:
    """The text, in which nothing acts on a terminal: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
