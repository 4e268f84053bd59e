"""The connection queue: accepted connections that wait for admission, in turns by user.

The next one is of the user whose rate limit has allowed that for longest: of two users with the
same limits, the one with fewer recent connections. So a user that connects now and then is never
behind one that connects all the time, and the rate limit holds back nobody else.
"""

import heapq
import math
import socket
from collections import deque

import msgspec

from sbus.shared.accounts import Account
from sbus.unix.credentials import Credentials


class AcceptedClient(msgspec.Struct, frozen=True):
    """A client that may come in. `sock` is non-blocking and belongs to the receiver."""

    sock: socket.socket
    credentials: Credentials
    account: Account


class ConnectionQueue:
    """Of one bus."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[AcceptedClient]] = {}
        """Of each user who has some, by the place of its account."""
        self._turns: list[tuple[int, int]] = []
        """A heap: when each of these users has its next turn, and the place of its account."""

    def add(self, client: AcceptedClient) -> None:
        account = client.account
        if account.place not in self._waiting:
            self._waiting[account.place] = deque()
            self._add_turn(account)
        self._waiting[account.place].append(client)

    def take(self, now_ns: int) -> AcceptedClient | None:
        """The next client, charged to its user's rate; None when none is due."""
        if self.due_ns() > now_ns:
            return None
        _, place = heapq.heappop(self._turns)
        waiting = self._waiting[place]
        client = waiting.popleft()
        client.account.pay_for_connection(now_ns)
        if waiting:
            self._add_turn(client.account)
        else:
            del self._waiting[place]
        return client

    def _add_turn(self, account: Account) -> None:
        heapq.heappush(self._turns, (account.next_admission_ns(), account.place))

    def due_ns(self) -> float:
        """When the next client is due; infinite when none waits."""
        return self._turns[0][0] if self._turns else math.inf

    def first(self) -> AcceptedClient | None:
        """The client that is due first."""
        return self._waiting[self._turns[0][1]][0] if self._turns else None

    def take_all(self) -> list[AcceptedClient]:
        """All clients, due or not, without a charge."""
        clients = [client for waiting in self._waiting.values() for client in waiting]
        self._waiting.clear()
        self._turns.clear()
        return clients
