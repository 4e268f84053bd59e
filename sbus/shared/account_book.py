"""The account book: the front opens the accounts of users, and knows which user has which."""

from collections.abc import Callable, Iterable

from sbus.limits import Limits, UserLimits
from sbus.shared.accounts import BUS, Account, Accounts

_SEARCH_INTERVAL_NS = 100_000_000
"""After a search for an account that may be closed has found none."""


class AccountBook(Accounts):
    """The front's view of all accounts."""

    def __init__(self, words: memoryview, workers: int, limits: Limits) -> None:
        super().__init__(words, workers, limits)
        self._places: dict[int, int] = {}
        """The place of each user's account, in the order in which they were opened."""
        self._kept: set[int] = set()
        self._free = list(range(limits.users_max, BUS, -1))
        self._lasting = limits.users_max // 2
        self._searched_ns = -_SEARCH_INTERVAL_NS
        self[BUS].set_quotas(limits, "bus_")

    def resume(self) -> None:
        """Go on with the accounts of a bus whose processes have died."""
        accounts = [self[place] for place in reversed(self._free)]
        self._places = {account.uid: account.place for account in accounts if account.resume()}
        taken = set(self._places.values())
        self._free = [place for place in self._free if place not in taken]

    def apply_limits(
        self, limits: Limits, limits_of: Callable[[int], UserLimits], kept: Iterable[int]
    ) -> None:
        """Set the limits of the bus and of each user; accounts in `kept` are never closed."""
        self[BUS].set_quotas(limits, "bus_")
        for uid, place in self._places.items():
            self[place].limit(limits_of(uid))
        self._kept.clear()
        for uid in kept:
            self.keep(uid, limits_of(uid))

    def keep(self, uid: int, limits: UserLimits) -> None:
        """Open an account that is never closed: this user always has a place."""
        self._kept.add(uid)
        self.of(uid, limits, 0)

    def of(self, uid: int, limits: UserLimits, now_ns: int) -> Account | None:
        """The account of a user, opened with these limits if there is none yet; None when all
        places are taken."""
        place = self._places.get(uid)
        if place is not None:
            return self[place]
        if not self._free and now_ns - self._searched_ns >= _SEARCH_INTERVAL_NS:
            self._close_newest_idle(now_ns)
        if not self._free:
            return None
        place = self._places[uid] = self._free.pop()
        account = self[place]
        account.open(uid, limits)
        return account

    def find(self, uid: int) -> Account | None:
        """The account of a user, or None."""
        place = self._places.get(uid)
        return None if place is None else self[place]

    def uids(self) -> list[int]:
        """The users that have an account."""
        return list(self._places)

    def _close_newest_idle(self, now_ns: int) -> None:
        """Close one account, so that its place is free."""
        for uid in reversed(list(self._places)[self._lasting :]):
            if uid not in self._kept and self[self._places[uid]].is_idle(now_ns):
                self._free.append(self._places.pop(uid))
                return
        self._searched_ns = now_ns

    def reap(self, worker: int, now_ns: int) -> None:
        """Take back what a dead worker had counted; under the lock."""
        for place in (BUS, *self._places.values()):
            self[place].reap(worker, now_ns)
