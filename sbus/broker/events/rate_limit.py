"""Rate-limited log entries: a misbehaving user costs the log a bounded number of them.

The same entry about the same user is logged once per interval, and about so many users at most: an
entry that is left out is counted in the next one. A stream of events shows each one.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from sbus.broker.events.emitter import EventEmitter, describe_process
from sbus.protocol.event import Event
from sbus.protocol.events import LimitReached
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

_ENTRIES_MAX = 100
"""Entries of one code that a process logs in an interval, about all users together: one person may
have any number of user ids."""

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


class _Code:
    """What was logged with one code."""

    def __init__(self) -> None:
        self._logged: dict[int, tuple[int, int]] = {}
        """When each user was logged, the oldest first, and how many entries were left out since."""
        self._left_out = 0
        """Entries about users that are not among those."""

    def admit(self, uid: int, now_ns: int, interval_ns: int) -> int | None:
        """How many entries were left out before this one; None if this one is left out, too."""
        at_ns, left_out = self._logged.get(uid, (None, 0))
        if at_ns is not None and now_ns - at_ns < interval_ns:
            self._logged[uid] = at_ns, left_out + 1
            return None
        if at_ns is None and not self._has_room(now_ns - interval_ns):
            self._left_out += 1
            return None
        self._logged.pop(uid, None)
        self._logged[uid] = now_ns, 0
        left_out += self._left_out
        self._left_out = 0
        return left_out

    def _has_room(self, before_ns: int) -> bool:
        """Whether one more user can be logged; the oldest one is forgotten for it, if it was logged
        before this time."""
        if len(self._logged) < _ENTRIES_MAX:
            return True
        uid, (at_ns, left_out) = next(iter(self._logged.items()))
        if at_ns > before_ns:
            return False
        del self._logged[uid]
        self._left_out += left_out
        return True


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
        self._codes: defaultdict[str, _Code] = defaultdict(_Code)

    def set_interval(self, seconds: float) -> None:
        self._interval_ns = int(seconds * 1e9)

    def log(self, code: str, uid: int, describe: Callable[[], Event]) -> None:
        """Log what `describe` returns, unless this code was just logged about this user, or about
        too many. `describe` is not called where nobody would see it."""
        self._log(code, uid, describe, self._now_ns())

    def _log(self, code: str, uid: int, describe: Callable[[], Event], now_ns: int) -> None:
        left_out = self._codes[code].admit(uid, now_ns, self._interval_ns)
        if left_out is None and not self._events.is_watched:
            return
        event = describe()
        self._events.show(event)
        if left_out is not None:
            self._events.log(event, left_out=left_out)

    def _now_ns(self) -> int:
        return int(self._clock() * 1e9)

    def log_limit_reached(self, limit: int, account: Account, own: Credentials) -> None:
        """Log that this client reached a limit of its user's, unless any process just did.

        The account records when it was logged, so it makes no difference which workers serve the
        user's clients.
        """
        now_ns = self._now_ns()
        if not account.is_report_due(limit, now_ns, self._interval_ns):
            return
        with self._lock:
            is_due = account.is_report_due(limit, now_ns, self._interval_ns)
            if is_due:
                account.note_report(limit, now_ns)
        if is_due:
            name, _ = _LIMITS[limit]
            self._log(name, account.uid, partial(limit_reached, limit, own), now_ns)
