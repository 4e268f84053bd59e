"""The waiting room: clients that are not read, because what they sent last has to wait.

    room     the log or the table has none: until this worker is woken
    stall    a client that blocks has none: until this worker is woken, or the time in which that
             client's user may hold publishers is spent
    rate     its user publishes too fast, or has too much waiting already: until a known time

Who waits for the rate waits behind the user's other clients: they are let go one by one, so that of
hundreds that wait not all have to be tried for every one that may go on. Who was woken is tried
again, and waits again if it was too early.

    held by an account  <=>  its last attempt ended at a stalled client of that account's user

This module does not know what the clients sent, nor when there is room.
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
"""When the next client of a user is let go, if the last one does not get on at once."""


class Reason(Enum):
    """What a client waits for."""

    ROOM = "room"
    STALL = "stall"
    RATE = "rate"


class Wait(msgspec.Struct, frozen=True):
    """Why, until when at most (monotonic nanoseconds), and for a stall by whose account."""

    reason: Reason
    until_ns: int = _NEVER_NS
    account: int = 0


FOR_ROOM = Wait(Reason.ROOM)


class WaitQueue:
    """One worker's. `end_holding` is called with an account that holds nobody here any more."""

    def __init__(self, end_holding: Callable[[int], None]) -> None:
        self._end_holding = end_holding
        self._waits: dict[int, Wait] = {}
        self._wakeable: dict[int, Session] = {}
        self._queues: dict[int, deque[Session]] = {}
        """Those that wait for the rate, by user."""
        self._due_ns: dict[tuple[Reason, int], int] = {}
        """When to let go, by account for stalls and by user for rates."""
        self._next_of_user: dict[int, Session] = {}
        self._held_by: dict[int, int] = {}
        self._holding: Counter[int] = Counter()
        self.next_ns = _NEVER_NS
        """When `due` has something to let go."""

    def __contains__(self, session: Session) -> bool:
        return session.id in self._waits

    def reason(self, session: Session) -> Reason | None:
        """Why a client is kept waiting; None for one that is not."""
        wait = self._waits.get(session.id)
        return None if wait is None else wait.reason

    def for_room(self) -> bool:
        """Whether anybody waits for room in the log or in the table."""
        return any(wait.reason is Reason.ROOM for wait in self._waits.values())

    def add(self, session: Session, wait: Wait) -> None:
        """Keep a client waiting."""
        self._waits[session.id] = wait
        was_next = self._is_next_no_more(session)
        if wait.reason is Reason.RATE:
            queue = self._queues.setdefault(session.uid, deque())
            if was_next:
                queue.appendleft(session)
            else:
                queue.append(session)
            self._set_due(Reason.RATE, session.uid, wait.until_ns)
        else:
            self._wakeable[session.id] = session
            if wait.reason is Reason.STALL:
                self._set_due(Reason.STALL, wait.account, wait.until_ns)
        self._note_holder(session, wait.account if wait.reason is Reason.STALL else None)

    def got_on(self, session: Session) -> None:
        """What the client sent last has not to wait any more."""
        if self._held_by:
            self._note_holder(session, None)
        if self._next_of_user and self._is_next_no_more(session):
            self._set_due(Reason.RATE, session.uid, 0)

    def woken(self) -> list[Session]:
        """Let go everybody for whom there may be room now."""
        sessions = list(self._wakeable.values())
        self._wakeable.clear()
        for session in sessions:
            del self._waits[session.id]
        return sessions

    def due(self, now_ns: int) -> list[Session]:
        """Let go those whose time has come."""
        sessions = []
        for (reason, number), at_ns in list(self._due_ns.items()):
            if at_ns > now_ns:
                continue
            del self._due_ns[reason, number]
            if reason is Reason.STALL:
                sessions += self.woken()
            elif number in self._queues:
                sessions.append(self._let_go_next(number, now_ns))
        self.next_ns = min(self._due_ns.values(), default=_NEVER_NS)
        return sessions

    def everybody(self) -> list[Session]:
        """Let go all that wait, whatever for: what they wait for may be other than it was."""
        sessions = self.woken()
        for uid in list(self._queues):
            self._set_due(Reason.RATE, uid, 0)
        return sessions

    def remove(self, session: Session) -> None:
        """The client leaves."""
        wait = self._waits.pop(session.id, None)
        if wait is not None and wait.reason is Reason.RATE:
            queue = self._queues[session.uid]
            queue.remove(session)
            if not queue:
                del self._queues[session.uid]
        self._wakeable.pop(session.id, None)
        self.got_on(session)

    def delay_seconds(self) -> float:
        """Time until `due` has something to let go; infinite when it never has."""
        if self.next_ns == _NEVER_NS:
            return math.inf
        return max(0, self.next_ns - time.monotonic_ns()) / 1e9

    # -- pieces --------------------------------------------------------------------------------
    def _let_go_next(self, uid: int, now_ns: int) -> Session:
        queue = self._queues[uid]
        session = self._next_of_user[uid] = queue.popleft()
        del self._waits[session.id]
        if queue:
            self._set_due(Reason.RATE, uid, now_ns + _NEXT_OF_USER_NS)
        else:
            del self._queues[uid]
        return session

    def _is_next_no_more(self, session: Session) -> bool:
        if self._next_of_user.get(session.uid) is not session:
            return False
        del self._next_of_user[session.uid]
        return True

    def _set_due(self, reason: Reason, number: int, at_ns: int) -> None:
        self._due_ns[reason, number] = at_ns
        self.next_ns = min(self.next_ns, at_ns)

    def _note_holder(self, session: Session, account: int | None) -> None:
        before = self._held_by.pop(session.id, None)
        if account is not None:
            self._held_by[session.id] = account
            self._holding[account] += 1
        if before is not None:
            self._holding[before] -= 1
            if not self._holding[before]:
                del self._holding[before]
                self._end_holding(before)
