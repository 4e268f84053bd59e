"""Accounts by user, for a process that did not open them."""

from sbus.shared.accounts import BUS, UID, Account, Accounts, account_words


class AccountSearch:
    """Finds users' accounts in their shared words, and remembers where they were."""

    def __init__(self, accounts: Accounts, words: memoryview, workers: int) -> None:
        self._accounts = accounts
        self._uids = words[UID :: account_words(workers)]
        self._places: dict[int, int] = {}

    def of_user(self, uid: int) -> Account | None:
        """The account of a user that has a connection, or None."""
        place = self._places.get(uid, BUS)
        if place == BUS or self._uids[place] != uid:
            uids = enumerate(self._uids.tolist())
            found = (at for at, one in uids if one == uid and self._accounts[at].connections)
            place = self._places[uid] = next(found, BUS)
        return None if place == BUS else self._accounts[place]
