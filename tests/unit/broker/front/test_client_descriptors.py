"""Descriptors: no user takes all of them, and some are left for administrators."""

import pytest

from sbus.broker.front import client_descriptors
from sbus.broker.front.client_descriptors import ClientDescriptors
from sbus.limits import Limits
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import Account
from sbus.shared.client_slots import SLOTS_MAX
from tests.unit.shared.memories import account_memory

TOTAL = 160
USERS = 12


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> ClientDescriptors:
    monkeypatch.setattr(client_descriptors, "_clients_max", lambda _workers: TOTAL)
    return ClientDescriptors(1, SLOTS_MAX)


@pytest.fixture
def accounts() -> list[Account]:
    limits = Limits(users_max=USERS)
    book = AccountBook(account_memory(1, limits), 1, limits)
    opened = [book.of(uid, limits.user, 0) for uid in range(USERS)]
    return [account for account in opened if account is not None]


def take_all(descriptors: ClientDescriptors, account: Account) -> int:
    """How many a user gets."""
    count = 0
    while descriptors.has_room(account):
        descriptors.count(account, 1)
        count += 1
    return count


def test_what_a_user_gives_back_is_there_for_others(
    descriptors: ClientDescriptors, accounts: list[Account]
) -> None:
    first, second, *_ = accounts
    take_all(descriptors, first)
    before = take_all(descriptors, second)
    descriptors.count(first, -20)
    assert take_all(descriptors, second) == 10
    assert second.connections == before + 10


@pytest.mark.usefixtures("descriptors")
def test_there_are_no_more_clients_than_slots(accounts: list[Account]) -> None:
    """Those of a memory that another bus with a lower limit has left."""
    descriptors = ClientDescriptors(1, TOTAL // 2, clients=3)
    taken = sum(take_all(descriptors, account) for account in accounts)
    while descriptors.has_room_for_administrator():
        descriptors.count(accounts[0], 1)
        taken += 1
    assert taken == TOTAL // 2
