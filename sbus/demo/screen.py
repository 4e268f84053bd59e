"""What the demo prints: plain lines of at most 80 columns, and tables.

Everything that came over the bus is shown as printable ASCII: a log line may contain escape
sequences, which a terminal would obey.
"""

from collections.abc import Sequence, Set

COLUMNS = 80


def printable(text: bytes) -> str:
    """`text` as printable ASCII on one line; every other byte becomes an escape."""
    shown = text.decode("ascii", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)


def fit(text: str, columns: int) -> str:
    """`text`, cut visibly if it does not fit."""
    return text if len(text) <= columns else text[: max(0, columns - 3)] + "..."


def message_line(seconds: float, subscriber: str, new: int, key: bytes, payload: bytes) -> str:
    """One line for a message that stands for the `new` ones since the last line.

    A long payload loses its beginning, because log lines begin alike.
    """
    start = f"{seconds:5.2f}  {subscriber:<10} {f'+{new}':>5}  {printable(key):<32}  "
    shown = printable(payload)
    room = max(0, COLUMNS - len(start))
    if len(shown) > room:
        shown = "..." + shown[len(shown) - max(0, room - 3) :]
    return fit(start + shown, COLUMNS)


def table(rows: Sequence[Sequence[str]], *, right: Set[int] = frozenset()) -> list[str]:
    """Lines of a table whose first row is its heading; the columns in `right` are numbers."""
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
