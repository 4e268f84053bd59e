"""Start-time fair queueing of clients: each user gets an equal share of a worker's work.

A turn serves one client a small batch, and its cost (packets, deliveries, bytes) is charged to the
client's user. The next turn belongs to the queued user with the lowest charge, and within a user to
its clients in turn. So a user's share does not depend on how many connections it has.

A client can be queued twice: to be read, and to be sent its backlog. Four of five turns of a user
send while backlogs are ready, so that a publisher does not fill backlogs faster than they are sent.

A user gains nothing by being idle. The *virtual time* is the charge of the user who had the last
turn, as it was when that turn started, and a user that joins the queue is charged at least this.
Leaving does not cancel a charge.

    virtual time = the charge at which the last turn started; it never falls
    every queued user's charge >= virtual time
    |charge of one user - charge of another| <= the cost of the costliest turn, if both are queued
    a user that joins without debt has the next turn, after others that joined like it before

When the queue is empty, and no client waits for room or for a stalled client, all charges are
forgotten, because nobody was kept waiting. This is SFQ as published by Goyal, Vin and Cheng
("Start-time Fair Queuing", SIGCOMM 1996), with users for flows and turns for packets.
"""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

from sbus.broker.delivery.outbox import Outbox

_SENDING_TURNS_MAX = 4
"""In a row while a client of the same user is to be read. To send what a publisher with a large
fan-out puts in backlogs in one turn takes about four turns."""
_USERS_KEPT = 64
"""With more users, those without debt are forgotten each time their number has doubled."""


class BacklogSender:
    """A client's backlog as it is queued for turns."""

    __slots__ = ("account_place", "is_queued", "outbox")

    def __init__(self, account_place: int, outbox: Outbox) -> None:
        self.account_place = account_place
        self.outbox = outbox
        self.is_queued = False


class Queueable(Protocol):
    """What can be queued: it belongs to a user, whose account tells which, and remembers whether it
    is queued."""

    account_place: int
    is_queued: bool


C = TypeVar("C", bound=Queueable)


class _User(Generic[C]):
    __slots__ = ("charge", "is_queued", "reading", "sending", "sent_in_row")

    def __init__(self) -> None:
        self.reading: deque[C] = deque()
        self.sending: deque[C] = deque()
        self.sent_in_row = 0
        self.charge = 0
        self.is_queued = False

    def is_ready(self) -> bool:
        return bool(self.reading or self.sending)

    def pop(self) -> C:
        """The client that has this user's next turn."""
        overdue = self.reading and self.sent_in_row >= _SENDING_TURNS_MAX
        sending = bool(self.sending) and not overdue
        self.sent_in_row = self.sent_in_row + 1 if sending else 0
        return (self.sending if sending else self.reading).popleft()


class FairQueue(Generic[C]):
    """The clients that are ready, in the order of their turns."""

    def __init__(self) -> None:
        self._users: dict[int, _User[C]] = {}
        self._users_kept = _USERS_KEPT
        self._heap: list[tuple[int, bool, int, _User[C]]] = []
        """The queued users except the one being served: (charge, whether it stayed queued after a
        turn, arrival, user)."""
        self._served: _User[C] | None = None
        self._virtual_time = 0
        self._arrivals = count()

    @property
    def users_known(self) -> int:
        return len(self._users)

    def add(self, item: C, *, sending: bool = False) -> None:
        """Queue a client behind its user's others, unless it is queued."""
        if item.is_queued:
            return
        item.is_queued = True
        user = self._users.get(item.account_place)
        if user is None:
            user = self._new_user(item.account_place)
        (user.sending if sending else user.reading).append(item)
        if not user.is_queued:
            user.is_queued = True
            user.charge = max(user.charge, self._virtual_time)
            self._push(user, stayed=False)

    def next(self) -> C | None:
        """Choose the client that has the next turn, and take it out; None when none is queued."""
        user = self._next_user()
        if user is None:
            return None
        item = user.pop()
        item.is_queued = False
        return item

    def forget_charges(self) -> None:
        """No client is queued, and none waits elsewhere for its turn."""
        self._users.clear()
        self._virtual_time = 0

    def charge(self, account_place: int, cost: int) -> None:
        """Charge a user for work that one of its clients caused."""
        user = self._users.get(account_place)
        if user is not None:
            user.charge += cost

    def _push(self, user: _User[C], *, stayed: bool) -> None:
        heappush(self._heap, (user.charge, stayed, next(self._arrivals), user))

    def _new_user(self, account_place: int) -> _User[C]:
        users = self._users
        if len(users) >= self._users_kept:
            for known, user in list(users.items()):
                if not user.is_queued and user.charge <= self._virtual_time:
                    del users[known]
            self._users_kept = max(_USERS_KEPT, 2 * len(users))
        user = users[account_place] = _User()
        return user

    def _next_user(self) -> _User[C] | None:
        heap = self._heap
        last = self._served
        if last is not None:
            if last.is_ready() and not heap:
                self._virtual_time = last.charge
                return last
            if last.is_ready():
                self._push(last, stayed=True)
            else:
                last.is_queued = False
        while heap:
            charge, _, _, user = heappop(heap)
            if charge == user.charge:
                self._virtual_time = charge
                self._served = user
                return user
            self._push(user, stayed=True)  # it was charged while it was queued
        self._served = None
        return None
