"""What the bus says on stderr about misbehaving clients, in a bounded number of lines.

The same complaint about the same user is written once per interval; the next line about it tells
how many were left out. Knows nothing of what the complaint is about.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

_KINDS_MAX = 10_000
"""Complaints remembered; beyond it the memory is emptied, which costs some repeated lines."""


def shown(text: bytes, bytes_max: int = 64) -> str:
    """What a client called something, as a line of a log can carry it: escaped, and not long."""
    escaped = "".join(
        chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in text[:bytes_max]
    )
    return f"{escaped}..." if len(text) > bytes_max else escaped


def log(text: str) -> None:
    """Write one line to stderr, if anybody is left to read it: the bus outlives its log."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"sbusd: {text}\n".encode(errors="backslashreplace"))


class Complaints:
    """Rate-limited lines. `write` and `clock` (seconds, monotonic) are for tests."""

    def __init__(
        self,
        interval_seconds: float,
        write: Callable[[str], None] = log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds = interval_seconds
        self._write = write
        self._clock = clock
        self._last: dict[tuple[str, int], tuple[float, int]] = {}

    def complain(self, code: str, uid: int, text: str) -> None:
        """Write `text`, unless the same code was written about the same user just now."""
        now = self._clock()
        at, left_out = self._last.get((code, uid), (None, 0))
        if at is not None and now - at < self.interval_seconds:
            self._last[code, uid] = (at, left_out + 1)
            return
        if len(self._last) >= _KINDS_MAX:
            self._last.clear()
        self._last[code, uid] = (now, 0)
        more = f" (and {left_out} more like it)" if left_out else ""
        self._write(f"{text}{more}")
