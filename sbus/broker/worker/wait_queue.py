"""Clients that are not read, because what they sent last has to wait.

    ROOM     for room, or for work of this worker (see below): until this worker is woken
    STALL    for a stalled client: until this worker is woken, or until the stalled client's user
             has no time left in which it may hold publishers
    RATE     for the user's rate limit, or because too much of the user's waits: until a known time

For ROOM, this is what a client waits for, and who wakes the worker then:

    room in the log, or in a window       the worker that walks, and the reaper when one has died
    room in the subscription table        the front, after each compaction
    the table, if much of it is unread    this worker, when it has read it
    records that background steps make    this worker, when they are made

A client that is released is tried again, and waits again if it was too early. Clients that wait for
their user's rate are released one by one: when one of hundreds can go on, the others are not tried
in vain.

    held by an account  <=>  its last attempt ended at a stalled client of that account's user

The queue also counts the bytes of the packets that were read and have to wait.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum

import msgspec

from sbus.broker.worker.session import Session

_NEVER_NS = 1 << 63
_NEXT_OF_USER_NS = 10_000_000
"""When the next client of a user is released, if the last one has no success at once."""


class Reason(Enum):
    """What kind of thing a client waits for."""

    ROOM = "room"
    STALL = "stall"
    RATE = "rate"


class Wait(msgspec.Struct, frozen=True):
    """What a client waits for, and how long at most."""

    reason: Reason
    until_ns: int = _NEVER_NS
    """At most, by `time.monotonic_ns`."""
    account_place: int = 0
    """For a stall: of the stalled client's user."""


FOR_ROOM = Wait(Reason.ROOM)


class WaitQueue:
    """The waiting clients of one worker. `end_holding` is called with an account that holds none of
    them any more."""

    def __init__(self, end_holding: Callable[[int], None]) -> None:
        self._end_holding = end_holding
        self._waits: dict[int, Wait] = {}
        self._wakeable: dict[int, Session] = {}
        self._queues: dict[int, deque[Session]] = {}
        """Those that wait for the rate, by account."""
        self._due_ns: dict[tuple[Reason, int], int] = {}
        """When to release, by account: for stalls, of the stalled client's user."""
        self._next_of_user: dict[int, Session] = {}
        """The last that was released of those that wait for the rate, until it has tried again."""
        self._account_of_stall: dict[int, int] = {}
        """The account that holds a client, by the clients that are held."""
        self._holding: Counter[int] = Counter()
        """The number of clients that each account holds."""
        self.next_ns = _NEVER_NS
        """When `release_due` has something to release."""
        self.waiting_bytes = 0
        """Of all packets that were read and have to wait."""

    def __contains__(self, session: Session) -> bool:
        return session.client in self._waits

    def reason(self, session: Session) -> Reason | None:
        """Why a client waits; None for one that does not."""
        wait = self._waits.get(session.client)
        return None if wait is None else wait.reason

    def has_room_waiters(self) -> bool:
        """Whether any client waits for room in the log or in the table."""
        return any(wait.reason is Reason.ROOM for wait in self._waits.values())

    def has_wakeable(self) -> bool:
        """Whether any client waits for something other than its user's rate."""
        return bool(self._wakeable)

    def add(self, session: Session, wait: Wait) -> None:
        """Keep a client waiting."""
        self._waits[session.client] = wait
        was_next = self._has_tried(session)
        if wait.reason is Reason.RATE:
            queue = self._queues.setdefault(session.account_place, deque())
            if was_next:
                queue.appendleft(session)
                self._due_ns.pop((Reason.RATE, session.account_place), None)  # it tells for all
            else:
                queue.append(session)
            self._set_due(Reason.RATE, session.account_place, wait.until_ns)
        else:
            self._wakeable[session.client] = session
            if wait.reason is Reason.STALL:
                self._set_due(Reason.STALL, wait.account_place, wait.until_ns)
        is_stall = wait.reason is Reason.STALL
        self._set_account_of_stall(session, wait.account_place if is_stall else None)

    def count_waiting(self, session: Session, size_bytes: int) -> None:
        """The packets of a client that wait now have this size."""
        if size_bytes != session.waiting_bytes:
            self.waiting_bytes += session.count_waiting(size_bytes)

    def record_success(self, session: Session) -> None:
        """The client has tried again, and what it sent last did not have to wait."""
        if self._account_of_stall:
            self._set_account_of_stall(session, None)
        if self._next_of_user and self._has_tried(session):
            self._set_due(Reason.RATE, session.account_place, 0)

    def remove(self, session: Session) -> None:
        """The client leaves."""
        wait = self._waits.pop(session.client, None)
        if wait is not None and wait.reason is Reason.RATE:
            queue = self._queues[session.account_place]
            queue.remove(session)
            if not queue:
                del self._queues[session.account_place]
        self._wakeable.pop(session.client, None)
        self.record_success(session)
        self.count_waiting(session, 0)

    # -- releasing -----------------------------------------------------------------------------
    def release_woken(self) -> list[Session]:
        """Release the clients that wait for something other than their user's rate."""
        sessions = list(self._wakeable.values())
        self._wakeable.clear()
        for session in sessions:
            del self._waits[session.client]
        return sessions

    def release_due(self, now_ns: int) -> list[Session]:
        """Release the clients whose time has come."""
        sessions = []
        for (reason, number), at_ns in list(self._due_ns.items()):
            if at_ns > now_ns:
                continue
            del self._due_ns[reason, number]
            if reason is Reason.STALL:
                sessions += self.release_woken()
            elif number in self._queues:
                sessions.append(self._release_next(number, now_ns))
        self.next_ns = min(self._due_ns.values(), default=_NEVER_NS)
        return sessions

    def release_all(self) -> list[Session]:
        """Release all clients, those that wait for their user's rate one by one: settings have
        changed."""
        sessions = self.release_woken()
        for account in list(self._queues):
            self._set_due(Reason.RATE, account, 0)
        return sessions

    def has_timers(self) -> bool:
        """Whether `release_due` will have something to release."""
        return bool(self._due_ns)

    def seconds_until_due(self) -> float:
        """Time until `release_due` has something to release; infinite when it never has."""
        if self.next_ns == _NEVER_NS:
            return math.inf
        return max(0, self.next_ns - time.monotonic_ns()) / 1e9

    def _release_next(self, account: int, now_ns: int) -> Session:
        queue = self._queues[account]
        session = self._next_of_user[account] = queue.popleft()
        del self._waits[session.client]
        if queue:
            self._set_due(Reason.RATE, account, now_ns + _NEXT_OF_USER_NS)
        else:
            del self._queues[account]
        return session

    def _has_tried(self, session: Session) -> bool:
        """Whether a client was the last of its user to be released for the rate. It counts as
        tried again from now on, so the next call returns False."""
        if self._next_of_user.get(session.account_place) is not session:
            return False
        del self._next_of_user[session.account_place]
        return True

    def _set_due(self, reason: Reason, number: int, at_ns: int) -> None:
        """Release at this time, or earlier where that is due already."""
        at_ns = self._due_ns[reason, number] = min(at_ns, self._due_ns.get((reason, number), at_ns))
        self.next_ns = min(self.next_ns, at_ns)

    def _set_account_of_stall(self, session: Session, account: int | None) -> None:
        before = self._account_of_stall.pop(session.client, None)
        if account is not None:
            self._account_of_stall[session.client] = account
            self._holding[account] += 1
        if before is not None:
            self._holding[before] -= 1
            if not self._holding[before]:
                del self._holding[before]
                self._end_holding(before)
