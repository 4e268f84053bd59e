"""A worker finds the accounts that the front opened."""

from sbus.limits import Limits
from sbus.shared.account_book import AccountBook
from sbus.shared.account_search import AccountSearch
from sbus.shared.accounts import Accounts
from tests.unit.shared.memories import open_memory

WORKERS = 2
LIMITS = Limits(users_max=2)
ROOT, USER, OTHER, LATER = 0, 1000, 1001, 1002


def test_users_with_a_connection_are_found_whenever_their_accounts_change() -> None:
    with open_memory(WORKERS, LIMITS) as memory:
        book = AccountBook(memory.accounts, WORKERS, LIMITS)
        accounts = Accounts(memory.accounts, WORKERS, LIMITS, worker=1)
        search = AccountSearch(accounts, memory.accounts, WORKERS)
        assert search.of_user(ROOT) is None, "no account is in use, and the bus's is nobody's"
        for place, uid in enumerate((USER, OTHER), 1):
            opened = book.of(uid, LIMITS.user, 0)
            assert opened is not None
            assert search.of_user(uid) is None
            opened.count_connection(1)
            found = search.of_user(uid)
            assert found is accounts[place]
            assert found.uid == uid
        others_account = book.find(OTHER)
        assert others_account is not None
        others_account.count_connection(-1)
        later = book.of(LATER, LIMITS.user, 10**9)
        assert later is not None, "it has the place of the other"
        later.count_connection(1)
        assert search.of_user(LATER) is accounts[2]
        assert search.of_user(OTHER) is None
        assert search.of_user(USER) is accounts[1]
