"""Background steps: changes that are made piece by piece between a worker's turns.

A change is an iterator, and each `next` makes one step. It yields False where it has to wait for
room in the subscription table. Users have turns, so that nobody waits until another user's client
with many patterns has left. The changes of one user are made in their order: a client may come back
while its patterns are being removed.
"""

import time
from collections import deque
from collections.abc import Iterator

from sbus.limits import UNITS_PER_SECOND


class BackgroundSteps:
    """Of one worker."""

    def __init__(self) -> None:
        self._changes: dict[int, deque[Iterator[bool]]] = {}
        """Of each user that has some, in the order of the users' turns."""
        self._stuck: list[tuple[int, Iterator[bool]]] = []
        """Changes that wait for room, and whose they are."""

    def add(self, account: int, change: Iterator[bool]) -> None:
        """Make a change for the user with this account, after the user's others."""
        self._changes.setdefault(account, deque()).append(change)

    def make_one(self) -> tuple[int, int] | None:
        """Make one step. Returns whose it was, and its cost; None when there is none to make."""
        if not self._changes:
            return None
        began_at = time.thread_time()
        account, changes = next(iter(self._changes.items()))
        can_continue = next(changes[0], None)
        if not can_continue:
            change = changes.popleft()
            if can_continue is False:
                self._stuck.append((account, change))
        del self._changes[account]
        if changes:
            self._changes[account] = changes
        return account, int((time.thread_time() - began_at) * UNITS_PER_SECOND)

    def retry(self) -> None:
        """There may be room in the table again."""
        for account, change in self._stuck:
            self.add(account, change)
        self._stuck.clear()
