"""What the bus logs about misbehaving clients, in a bounded number of entries.

The same complaint about the same user is logged once per interval; the next one tells how many were
left out. Whoever watches events is shown all of them. Knows nothing of what the complaint is about.
"""

import time
from collections.abc import Callable

from sbus.broker.events.emitter import EventEmitter
from sbus.protocol.events import Event

_KINDS_MAX = 10_000
"""Complaints remembered; beyond it the memory is emptied, which costs some repeated lines."""


def shown(text: bytes, bytes_max: int = 64) -> str:
    """What a client called something, as a line of a log can carry it: escaped, and not long."""
    escaped = "".join(
        chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in text[:bytes_max]
    )
    return f"{escaped}..." if len(text) > bytes_max else escaped


class LogRateLimiter:
    """Rate-limited events. `clock` (seconds, monotonic) is for tests."""

    def __init__(
        self,
        interval_seconds: float,
        events: EventEmitter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds = interval_seconds
        self._events = events
        self._clock = clock
        self._last: dict[tuple[str, int], tuple[float, int]] = {}

    def complain(self, code: str, uid: int, describe: Callable[[], Event]) -> None:
        """Log what `describe` gives, unless the same code was logged about the same user just now.
        Where nobody would see it, it is not asked."""
        now = self._clock()
        at, left_out = self._last.get((code, uid), (None, 0))
        if at is not None and now - at < self.interval_seconds:
            self._last[code, uid] = (at, left_out + 1)
            if self._events.watched:
                self._events.show(describe())
            return
        if len(self._last) >= _KINDS_MAX:
            self._last.clear()
        self._last[code, uid] = (now, 0)
        event = describe()
        self._events.show(event)
        self._events.log(event, left_out=left_out)
