"""How the demo looks: plain lines of at most 80 columns, and tables.

Everything that came over the bus is shown as printable ASCII, so nothing a log line holds can play
tricks on a terminal. Knows no bus.
"""

from collections.abc import Sequence

COLUMNS = 80


def say(line: str = "") -> None:
    """Print one line, at once, also into a pipe."""
    print(line, flush=True)


def printable(text: bytes) -> str:
    """`text` on one line, with every byte that a terminal might act upon written as an escape."""
    shown = text.decode("ascii", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)


def fit(text: str, columns: int) -> str:
    """`text` cut to so many columns, visibly."""
    return text if len(text) <= columns else text[: max(0, columns - 3)] + "..."


def message_line(seconds: float, subscriber: str, new: int, key: bytes, payload: bytes) -> str:
    """One line for a message that stands for the `new` ones since the last line.

    Of a long payload the end is shown: log lines begin alike.
    """
    start = f"{seconds:5.2f}  {subscriber:<10} {f'+{new}':>5}  {printable(key):<32}  "
    shown = printable(payload)
    room = max(0, COLUMNS - len(start))
    if len(shown) > room:
        shown = "..." + shown[len(shown) - max(0, room - 3) :]
    return fit(start + shown, COLUMNS)


def table(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of a table whose first row is its heading; the columns in `right` hold numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return [fit(line, COLUMNS) for line in lines]
