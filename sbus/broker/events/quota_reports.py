"""What an administrator is told of users who reached a limit: one event for each, once per
interval.

Which worker a user's clients are on makes no difference: that it was reported stands in the user's
account. This module does not know what becomes of what was too much.
"""

import time

from sbus.broker.events.emitter import EventEmitter, process_of
from sbus.protocol.events import LimitReached
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    BLOCKING,
    CONNECTIONS,
    HELD_TIME,
    PUBLISH_RATE,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTIONS,
    Account,
)
from sbus.shared.segment import Segment
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import program_name

_LIMITS = {
    SUBSCRIPTIONS: ("user_subscriptions_max", "has no room for more subscriptions"),
    SUBSCRIPTION_BYTES: ("user_subscription_bytes_max", "has no room for more subscriptions"),
    BACKLOG_BYTES: ("user_backlog_bytes_max", "has no room for more backlog"),
    BLOCKING: (
        "blocking_clients_max",
        "has no place for one more client that blocks, which discards",
    ),
    PUBLISH_RATE: (
        "user_messages_per_second_max",
        "is held back, because it publishes too fast",
    ),
    HELD_TIME: (
        "user_held_seconds_max",
        "may hold publishers back no longer, block is discard",
    ),
    CONNECTIONS: ("user_connections_max", "has as many connections as it may"),
}
_SHARED = {
    SUBSCRIPTION_BYTES: ", and what others leave of bus_subscription_bytes_max",
    BACKLOG_BYTES: ", and what others leave of bus_backlog_bytes_max",
}


def limit_reached(limit: int, own: Credentials) -> LimitReached:
    """The event about the client that reached a limit."""
    name, text = _LIMITS[limit]
    why = f"{text} ({name}{_SHARED.get(limit, '')})"
    return LimitReached(who=process_of(own, program_name(own.pid)), limit=name, why=why)


class QuotaReporter:
    """One worker's."""

    def __init__(self, segment: Segment, interval_seconds: float, events: EventEmitter) -> None:
        self._segment = segment
        self._events = events
        self.go_by(interval_seconds)

    def go_by(self, interval_seconds: float) -> None:
        """Have another interval from now on."""
        self._interval_ns = int(interval_seconds * 1e9)

    def report(self, limit: int, account: Account, own: Credentials) -> None:
        """Report that this client reached a limit of its user's, unless that was just done."""
        now_ns = time.monotonic_ns()
        if not account.is_report_due(limit, now_ns, self._interval_ns):
            return
        with self._segment:
            is_due = account.is_report_due(limit, now_ns, self._interval_ns)
            if is_due:
                account.note_report(limit, now_ns)
        if is_due:
            self._events.emit(limit_reached(limit, own))
