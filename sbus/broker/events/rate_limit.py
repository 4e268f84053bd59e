"""Rate-limited log entries: a misbehaving user costs the log a bounded number of them.

The same entry about the same user is logged once per interval. A stream of events shows each one.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sbus.broker.events.emitter import EventEmitter, describe_process
from sbus.protocol.events import Event, LimitReached
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    BLOCKING_CLIENTS,
    CONNECTION_RATE,
    CONNECTIONS,
    HELD_TIME,
    MATCH_STEPS,
    PUBLISH_RATE,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTIONS,
    Account,
)
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import program_name

_ENTRIES_MAX = 10_000
"""Entries remembered; beyond it the memory is emptied, which costs some repeated entries."""

NO_USER = -1
"""In place of a user's id, for what no user is known to have caused."""

_LIMITS = {
    SUBSCRIPTIONS: ("user_subscriptions_max", "has no room for more subscriptions"),
    SUBSCRIPTION_BYTES: ("user_subscription_bytes_max", "has no room for more subscriptions"),
    BACKLOG_BYTES: ("user_backlog_bytes_max", "has no room for more backlog"),
    MATCH_STEPS: ("user_match_steps_max", "has patterns that take too many steps to match"),
    BLOCKING_CLIENTS: (
        "blocking_clients_max",
        "has no place for one more client that blocks, which discards",
    ),
    PUBLISH_RATE: ("user_messages_per_second_max", "is held back, because it publishes too fast"),
    HELD_TIME: ("user_held_seconds_max", "may hold publishers back no longer, block is discard"),
    CONNECTIONS: ("user_connections_max", "has as many connections as it may"),
    CONNECTION_RATE: ("user_connections_per_second_max", "waits, because it connects too fast"),
}
_SHARED = {
    SUBSCRIPTION_BYTES: ", and what others leave of bus_subscription_bytes_max",
    BACKLOG_BYTES: ", and what others leave of bus_backlog_bytes_max",
    MATCH_STEPS: ", and what others leave of bus_match_steps_max",
}


def limit_reached(limit: int, own: Credentials) -> LimitReached:
    """The event about the client that reached a limit."""
    name, text = _LIMITS[limit]
    why = f"{text} ({name}{_SHARED.get(limit, '')})"
    return LimitReached(who=describe_process(own, program_name(own.pid)), limit=name, why=why)


class LogRateLimiter:
    """Limits the log entries of one process. `lock` is held to write to an account that other
    processes write to. `clock` (seconds, monotonic) is for tests."""

    def __init__(
        self,
        interval_seconds: float,
        events: EventEmitter,
        lock: AbstractContextManager[Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.set_interval(interval_seconds)
        self._events = events
        self._lock = lock or nullcontext()
        self._clock = clock
        self._last: dict[tuple[str, int], tuple[float, int]] = {}
        """When each entry was logged, and how many like it were left out since."""

    def set_interval(self, seconds: float) -> None:
        self._interval_seconds = seconds
        self._interval_ns = int(seconds * 1e9)

    def log(self, code: str, uid: int, describe: Callable[[], Event]) -> None:
        """Log what `describe` returns, unless this code was just logged about this user. The next
        entry tells how many were left out. `describe` is not called where nobody would see it."""
        now = self._clock()
        at, left_out = self._last.get((code, uid), (None, 0))
        if at is not None and now - at < self._interval_seconds:
            self._last[code, uid] = (at, left_out + 1)
            if self._events.is_watched:
                self._events.show(describe())
            return
        if len(self._last) >= _ENTRIES_MAX:
            self._last.clear()
        self._last[code, uid] = (now, 0)
        event = describe()
        self._events.show(event)
        self._events.log(event, left_out=left_out)

    def log_limit_reached(self, limit: int, account: Account, own: Credentials) -> None:
        """Log that this client reached a limit of its user's, unless any process just did.

        The account records when it was logged, so it makes no difference which workers serve the
        user's clients.
        """
        now_ns = time.monotonic_ns()
        if not account.is_report_due(limit, now_ns, self._interval_ns):
            return
        with self._lock:
            is_due = account.is_report_due(limit, now_ns, self._interval_ns)
            if is_due:
                account.note_report(limit, now_ns)
        if is_due:
            self._events.emit(limit_reached(limit, own))
