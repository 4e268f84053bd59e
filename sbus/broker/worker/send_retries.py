"""Clients whose backlogs are sent in a moment, though nothing will report that they can be.

The kernel had no memory for a packet, or sends to the client's user have taken too long. In the
second case one client of the user is tried again when there is time, and then the next.
"""

import math
import time

from sbus.broker.delivery.send_times import SendTimes
from sbus.broker.worker.session import Session

_MEMORY_RETRY_NS = 10_000_000
"""When the kernel has no memory for a packet, the socket is writable all the same."""


class SendRetries:
    """Of one worker."""

    def __init__(self, send_times: SendTimes) -> None:
        self._send_times = send_times
        self._due_ns: dict[Session, int] = {}
        """When there may be memory."""
        self._without_time: dict[int, dict[Session, None]] = {}
        """Those that wait for time, by the places of their accounts."""

    def wait_for_memory(self, session: Session) -> None:
        self._due_ns.setdefault(session, time.monotonic_ns() + _MEMORY_RETRY_NS)

    def wait_for_time(self, session: Session) -> None:
        self._without_time.setdefault(session.account_place, {})[session] = None

    def remove(self, session: Session) -> None:
        """The client leaves."""
        self._due_ns.pop(session, None)
        waiting = self._without_time.get(session.account_place, {})
        waiting.pop(session, None)
        if not waiting:
            self._without_time.pop(session.account_place, None)

    def take_due(self) -> list[Session]:
        """Those to try again now: of each user without time, one."""
        if not self._due_ns and not self._without_time:
            return []
        now_ns = time.monotonic_ns()
        due = [session for session, due_ns in self._due_ns.items() if due_ns <= now_ns]
        due += [
            next(iter(waiting))
            for place, waiting in self._without_time.items()
            if self._send_times.due_ns(place) <= now_ns
        ]
        for session in due:
            self.remove(session)
        return due

    def seconds_until_due(self) -> float:
        """Time until `take_due` has something to return; infinite when it never has."""
        times_ns = [*self._due_ns.values(), *map(self._send_times.due_ns, self._without_time)]
        if not times_ns:
            return math.inf
        return max(0, min(times_ns) - time.monotonic_ns()) / 1e9
