"""The descriptors that clients take: how many there are, and for whom.

Every client takes one in the front and one in its worker, and one worker may have all clients. A
user takes at most as many as it leaves to other users, as with all quotas of the bus:

    user's connections + 1  <=  descriptors - reserve - (all connections + 1)

The reserve, and what others leave, is for administrators, so that they can always connect.
"""

import os
import resource

from sbus.shared.accounts import Account
from sbus.unix.open_files import administrators_max, watched_processes_max

_PER_WORKER = 3
"""A link, the end of it that is on its way to the worker, and a pidfd."""
_SPARE = 8
"""For what the standard library opens for a moment, and a connection that is refused. A client on
its way to another worker takes one more; where there is none, it stays."""
_RESERVED_PART = 16
_RESERVE_MAX = 64
"""One of 16 is for administrators, and no more than that."""


class ClientDescriptors:
    """Of a bus with so many workers, when it starts."""

    def __init__(self, workers: int, slots: int, clients: int = 0) -> None:
        """For that many clients there are slots; `clients` are there already, from another bus."""
        self._total = min(_clients_max(workers) + clients, slots)
        self._reserve = min(self._total // _RESERVED_PART, _RESERVE_MAX)
        self._in_use = 0

    def has_room(self, account: Account) -> bool:
        """Whether this user leaves as many to others as it has, with one more."""
        more = self._in_use + 1
        return account.connections + 1 <= self._total - self._reserve - more

    def has_room_for_administrator(self) -> bool:
        return self._in_use < self._total

    def count(self, account: Account, more: int) -> None:
        """Count connections of a user that are admitted, or with a negative number have ended."""
        self._in_use += more
        account.count_connection(more)


def _clients_max(workers: int) -> int:
    """Clients that leave enough descriptors to replace every worker, and for administrators.

    A worker watches processes of clients besides.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    reserve = _PER_WORKER * workers + _SPARE + watched_processes_max() + 2 * administrators_max()
    return max(1, limit - in_use - reserve)
