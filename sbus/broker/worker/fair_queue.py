"""Whose turn it is: the user that has caused the least work, and the clients of a user in turn.

Readiness only puts a client in line. A turn is one small batch of one client, and the work that it
causes (packets, deliveries, bytes) is charged to its user. Next comes the user in line that
was charged least: what a user gets of a worker does not depend on how many connections it has.

A client may stand in line twice, to be read and to be sent what waits for it. Of a user's turns the
second kind comes first, but for one in five, so that who publishes does not fill backlogs faster
than they are sent.

Saving up does not pay: whoever comes to the line counts from then on as if it had been charged as
much as whoever was served last, *now*. Nor does leaving and coming back: charges stay.

    now = what the user who had the last turn was charged before it; it never falls
    every user in line was charged now or more
    |charged to one - charged to another| <= the largest turn of either, while both are in line
    whoever comes to the line and owes nothing has the next turn, but for others like it before it

When nobody is in line, all debts are forgiven: there was no one to owe to. This is start-time fair
queueing (Goyal, Vin and Cheng, 1996), with users for flows and turns for packets.

Pure: knows neither sockets nor what a turn does.
"""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

_SENDING_TURNS_MAX = 4
"""In a row while somebody is to be read: what one turn of a publisher with a large fan-out puts in
backlogs takes about as many to send."""
_USERS_KEPT = 64
"""More users than this are looked through for some who may be forgotten, each time they double."""


class InLine(Protocol):
    """What may stand in line: it belongs to a user, and knows whether it is in line already."""

    uid: int
    in_line: bool


C = TypeVar("C", bound=InLine)


class _User(Generic[C]):
    __slots__ = ("charged_units", "in_line", "reading", "sending", "sent_in_row")

    def __init__(self) -> None:
        self.reading: deque[C] = deque()
        self.sending: deque[C] = deque()
        self.sent_in_row = 0
        self.charged_units = 0
        self.in_line = False

    def has_more(self) -> bool:
        return bool(self.reading or self.sending)

    def take(self) -> C:
        """The client that has this user's next turn."""
        overdue = self.reading and self.sent_in_row >= _SENDING_TURNS_MAX
        sending = bool(self.sending) and not overdue
        self.sent_in_row = self.sent_in_row + 1 if sending else 0
        return (self.sending if sending else self.reading).popleft()


class FairQueue(Generic[C]):
    """The clients that are ready, in the order in which they will be served."""

    def __init__(self) -> None:
        self._users: dict[int, _User[C]] = {}
        self._users_kept = _USERS_KEPT
        self._line: list[tuple[int, bool, int, _User[C]]] = []
        """A heap of the users in line, but for the one being served: (charged, whether it stayed in
        line after a turn, arrival, user)."""
        self._served: _User[C] | None = None
        self._now_units = 0
        self._arrivals = count()

    @property
    def users_known(self) -> int:
        return len(self._users)

    def add(self, client: C, *, sending: bool = False) -> None:
        """Put a client at the end of its user's line, unless it is in line."""
        if client.in_line:
            return
        client.in_line = True
        user = self._users.get(client.uid)
        if user is None:
            user = self._new_user(client.uid)
        (user.sending if sending else user.reading).append(client)
        if not user.in_line:
            user.in_line = True
            user.charged_units = max(user.charged_units, self._now_units)
            self._stand_in_line(user, stayed=False)

    def next(self) -> C | None:
        """Take the client whose turn it is out of line; None when nobody is in line."""
        user = self._next_user()
        if user is None:
            self._users.clear()
            self._now_units = 0
            return None
        client = user.take()
        client.in_line = False
        return client

    def charge(self, uid: int, units: int) -> None:
        """Charge a user for work that one of its clients caused."""
        user = self._users.get(uid)
        if user is not None:
            user.charged_units += units

    def _stand_in_line(self, user: _User[C], *, stayed: bool) -> None:
        heappush(self._line, (user.charged_units, stayed, next(self._arrivals), user))

    def _new_user(self, uid: int) -> _User[C]:
        users = self._users
        if len(users) >= self._users_kept:
            for known, user in list(users.items()):
                if not user.in_line and user.charged_units <= self._now_units:
                    del users[known]
            self._users_kept = max(_USERS_KEPT, 2 * len(users))
        user = users[uid] = _User()
        return user

    def _next_user(self) -> _User[C] | None:
        line = self._line
        last = self._served
        if last is not None:
            if last.has_more() and not line:
                self._now_units = last.charged_units
                return last
            if last.has_more():
                self._stand_in_line(last, stayed=True)
            else:
                last.in_line = False
        while line:
            charged_units, _, _, user = heappop(line)
            if charged_units == user.charged_units:
                self._now_units = charged_units
                self._served = user
                return user
            self._stand_in_line(user, stayed=True)
        self._served = None
        return None
