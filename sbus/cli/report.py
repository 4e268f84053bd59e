"""How a command says what went wrong: one line on standard error, whatever the text holds.

Knows neither errors nor exit statuses.
"""

import sys


def report_error(text: str, *, command: str = "sbusd") -> None:
    """Print `command: text`, with everything unprintable escaped, so that it stays one line."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    print(f"{command}: {line}", file=sys.stderr)
