"""Whose turn it is: deficit round robin over users, and over the clients of a user.

Readiness only puts a client in line. Users take turns; in a turn one client of the user's, in turn
too, is served one small batch, and the work that it caused (packets, deliveries, bytes) is charged
to the user. A user that caused more than a quantum sits out as many rounds as it takes to pay for
it, unless nobody else wants anything. So what a user gets of a worker does not depend on how many
connections it has.

    -debt <= deficit <= quantum;   a user is served in a round only with a deficit > 0
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
    __slots__ = ("clients", "deficit_units", "uid")

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.clients: deque[C] = deque()
        self.deficit_units = 0


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
            user = self._users[client.uid] = _User(client.uid)
        if not user.clients:
            self._ring.append(user)
        user.clients.append(client)

    def next(self) -> C | None:
        """Take the client whose turn it is out of line; None when nobody is in line."""
        ring = self._ring
        if not ring:
            self._users.clear()
            return None
        if len(ring) == 1:
            ring[0].deficit_units = self._quantum_units
        while True:
            user = ring[0]
            if user.deficit_units <= 0:
                user.deficit_units += self._quantum_units
                ring.rotate(-1)
                continue
            client = user.clients.popleft()
            client.in_line = False
            ring.popleft()
            if user.clients:
                ring.append(user)
            return client

    def charge(self, uid: int, units: int) -> None:
        """Charge a user for the turn that one of its clients just had."""
        user = self._users.get(uid)
        if user is not None:
            user.deficit_units -= units
