"""Back-pressure: for how long a client may hold publishers."""

import time
from collections.abc import Iterator

import pytest

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.limits import Limits
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import Accounts
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.worker_statistics import WorkerStatistics
from sbus.unix.credentials import Credentials
from tests.unit.shared.memories import open_memory

OWN = Credentials(gid=10, uid=1000, pid=4711)
SECOND_NS = 1_000_000_000


class Scene:
    """A client of worker 0 that blocks."""

    def __init__(self, memory: SharedMemory, limits: Limits) -> None:
        self.spent = 0
        stalls = StallTable(memory.stalls, limits.blocking_clients_max, 0)
        account = AccountBook(memory.accounts, 2, limits).of(OWN.uid, limits.user, 0)
        assert account is not None
        self.account = Accounts(memory.accounts, 2, limits, 1)[account.place]
        place = stalls.take_place()
        assert place is not None
        profile = AccessProfile(0, 0, may_block_others=False)
        rule = BackpressureRule(7, place, account.place, OWN, profile)
        statistics = WorkerStatistics()
        self.backpressure = Backpressure(rule, account, memory, stalls, statistics, self)

    def on_held_time_spent(self) -> None:
        self.spent += 1

    def on_stall(self, is_stalled: bool) -> None: ...


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(2) as opened:
        opened.lock.open()
        yield opened


def test_nobody_is_held_once_the_users_time_is_spent_and_that_is_told(memory: SharedMemory) -> None:
    scene = Scene(memory, Limits(user_held_seconds_max=2.0))
    now_ns = time.monotonic_ns()
    scene.account.begin_holding(now_ns - SECOND_NS)
    assert scene.backpressure.may_hold(scene.account.place)
    scene.account.end_holding(now_ns + SECOND_NS)
    assert not scene.backpressure.may_hold(scene.account.place)
    assert scene.spent == 1
    assert not scene.backpressure.may_hold(scene.account.place + 1)
    assert scene.spent == 1, "what is not its own user's says nothing of the time"


def test_without_any_time_nobody_is_ever_held(memory: SharedMemory) -> None:
    scene = Scene(memory, Limits(user_held_seconds_max=0))
    assert not scene.backpressure.may_hold(scene.account.place)
