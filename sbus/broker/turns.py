"""Whose turn it is: deficit round robin over users, and over the clients of a user.

Readiness only puts a client in line. Users take turns. In a user's turn its clients, in turn too,
are served one small batch each, and the work that this causes (packets, deliveries, bytes) is
charged to the user, until it has spent its quantum; then it goes to the end and gets a new one. A
user that spent more sits out as many rounds as it takes to pay for it, unless nobody else wants
anything. So what a user gets of a worker does not depend on how many connections it has.

    deficit <= quantum;   a user is served only with a deficit > 0, or when it is alone
    when nobody is in line, all debts are forgiven: there was no one to owe to

Pure: knows neither sockets nor what a turn does.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar


class InLine(Protocol):
    """What may stand in line: it belongs to a user, and knows whether it is in line already."""

    uid: int
    in_line: bool


C = TypeVar("C", bound=InLine)


class _User(Generic[C]):
    __slots__ = ("clients", "deficit_units", "in_ring")

    def __init__(self, deficit_units: int) -> None:
        self.clients: deque[C] = deque()
        self.deficit_units = deficit_units
        self.in_ring = False


class Turns(Generic[C]):
    """The clients that are ready, in the order in which they will be served."""

    def __init__(self, quantum_units: int) -> None:
        self._quantum_units = quantum_units
        self._users: dict[int, _User[C]] = {}
        self._ring: deque[_User[C]] = deque()

    def add(self, client: C) -> None:
        """Put a client at the end of its user's line, unless it is in line."""
        if client.in_line:
            return
        client.in_line = True
        user = self._users.get(client.uid)
        if user is None:
            user = self._users[client.uid] = _User(self._quantum_units)
        user.clients.append(client)
        if not user.in_ring:
            user.in_ring = True
            self._ring.append(user)

    def next(self) -> C | None:
        """Take the client whose turn it is out of line; None when nobody is in line.

        The user at the head is served until it has spent its quantum or wants nothing more.
        """
        ring = self._ring
        while ring:
            user = ring[0]
            if not user.clients:
                ring.popleft()
                user.in_ring = False
            elif len(ring) > 1 and user.deficit_units <= 0:
                user.deficit_units += self._quantum_units
                ring.rotate(-1)
            else:
                if len(ring) == 1 and user.deficit_units <= 0:
                    user.deficit_units = self._quantum_units
                client = user.clients.popleft()
                client.in_line = False
                return client
        self._users.clear()
        return None

    def charge(self, uid: int, units: int) -> None:
        """Charge a user for the turn that one of its clients just had."""
        user = self._users.get(uid)
        if user is not None:
            user.deficit_units -= units
