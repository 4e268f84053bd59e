"""The connection queue: accepted connections that wait for admission, in turns by user.

Turns follow start-time fair queueing, in which every connection costs the same: a user that joins
the queue has its turn before a user that has just had one. So a user that connects now and then is
never behind one that connects all the time. A user that is over its rate limit has no turns until
its next connection is due, and holds back nobody else.
"""

import heapq
import math
import socket
from collections import deque
from collections.abc import Iterator

import msgspec

from sbus.shared.accounts import Account
from sbus.unix.credentials import Credentials


class AcceptedClient(msgspec.Struct, frozen=True):
    """A client that may come in. `sock` belongs to the receiver."""

    sock: socket.socket
    credentials: Credentials
    account: Account


class ConnectionQueue:
    """Of one bus."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[AcceptedClient]] = {}
        """Of each user who has some, by the place of its account."""
        self._turns: list[tuple[int, int]] = []
        """A heap: the turns of users whose next clients are due, and the places of accounts."""
        self._turn = 0
        """The last one that a user had."""
        self._later: list[tuple[int, int]] = []
        """A heap: when the other users' next clients are due, and the places of accounts."""

    def __iter__(self) -> Iterator[AcceptedClient]:
        """All clients, in no order."""
        for waiting in self._waiting.values():
            yield from waiting

    def add(self, client: AcceptedClient) -> None:
        account = client.account
        waiting = self._waiting.setdefault(account.place, deque())
        if not waiting:
            heapq.heappush(self._later, (account.next_admission_ns(), account.place))
        waiting.append(client)

    def take(self, now_ns: int) -> AcceptedClient | None:
        """The next client, charged to its user's rate; None when none is due."""
        while self._later and self._later[0][0] <= now_ns:
            _, place = heapq.heappop(self._later)
            heapq.heappush(self._turns, (self._turn, place))
        if not self._turns:
            return None
        self._turn, place = heapq.heappop(self._turns)
        waiting = self._waiting[place]
        client = waiting.popleft()
        client.account.pay_for_connection(now_ns)
        due_ns = client.account.next_admission_ns()
        if not waiting:
            del self._waiting[place]
        elif due_ns <= now_ns:
            heapq.heappush(self._turns, (self._turn + 1, place))
        else:
            heapq.heappush(self._later, (due_ns, place))
        return client

    def due_ns(self) -> float:
        """When the next client is due; infinite when none waits."""
        if self._turns:
            return 0
        return self._later[0][0] if self._later else math.inf

    def first_held_back(self) -> AcceptedClient | None:
        """The client that is due next of those that are not due yet."""
        return self._waiting[self._later[0][1]][0] if self._later else None

    def take_all(self) -> list[AcceptedClient]:
        """All clients, due or not, without a charge."""
        clients = list(self)
        self._waiting.clear()
        self._turns.clear()
        self._later.clear()
        return clients
