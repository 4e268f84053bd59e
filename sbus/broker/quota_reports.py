"""What an administrator is told of users who reached a limit: one line for each, once per interval.

Which worker a user's clients are on makes no difference: that it was reported stands in the user's
account. This module does not know what becomes of what was too much.
"""

import time

from sbus.broker.complaints import log, shown
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

_TEXTS = {
    SUBSCRIPTIONS: "has no room for more subscriptions (user_subscriptions_max)",
    SUBSCRIPTION_BYTES: "has no room for more subscriptions (user_subscription_bytes_max, and what "
    "others leave of bus_subscription_bytes_max)",
    BACKLOG_BYTES: "has no room for more backlog (user_backlog_bytes_max, and what others leave of "
    "bus_backlog_bytes_max)",
    BLOCKING: "has no place for one more client that blocks, which discards (blocking_clients_max)",
    PUBLISH_RATE: "is held back, because it publishes too fast (user_messages_per_second_max)",
    HELD_TIME: "may hold publishers back no longer, block is discard (user_held_seconds_max)",
    CONNECTIONS: "has as many connections as it may (user_connections_max)",
}


def describe_limit(limit: int, own: Credentials) -> str:
    """The line about the client that reached a limit."""
    program = shown(program_name(own.pid)) or "ended"
    return f"uid {own.uid} {_TEXTS[limit]}: pid {own.pid} ({program})"


class QuotaReports:
    """One worker's."""

    def __init__(self, segment: Segment, interval_seconds: float) -> None:
        self._segment = segment
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
            log(describe_limit(limit, own))
