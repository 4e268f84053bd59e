"""Back-pressure: which publishers a client may hold, for how long, and that they are released."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.broker.config.access_policy import RULES_MAX, AccessProfile
from sbus.broker.delivery.backpressure import (
    ANYBODY,
    NOBODY,
    Backpressure,
    BackpressureRule,
    unpack_rule,
)
from sbus.limits import Limits
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import Accounts
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.worker_statistics import WorkerStatistics
from sbus.unix.credentials import Credentials
from tests.unit.shared.memories import open_memory, was_woken

OWN = Credentials(gid=10, uid=1000, pid=4711)
SECOND_NS = 1_000_000_000
IDS = st.integers(0, 2**32 - 1)


class Scene:
    """A client of worker 0 that blocks, and the view that worker 1 has of it."""

    def __init__(
        self,
        memory: SharedMemory,
        limits: Limits,
        *,
        everybody: bool = False,
        stalls: StallTable | None = None,
    ) -> None:
        self.memory = memory
        self.spent = 0
        stalls = stalls or StallTable(memory.stalls, limits.blocking_clients_max, 0)
        self.stalls = stalls
        self.theirs = StallTable(memory.stalls, limits.blocking_clients_max, 1)
        account = AccountBook(memory.accounts, 2, limits).of(OWN.uid, limits.user, 0)
        assert account is not None
        self.account = Accounts(memory.accounts, 2, limits, 1)[account.place]
        place = stalls.take_place()
        assert place is not None
        profile = AccessProfile(0, 0, everybody)
        self.rule = BackpressureRule(7, place, account.place, OWN, profile)
        self.changes: list[bool] = []
        """What it said about being stalled."""
        self.backpressure = Backpressure(
            self.rule,
            account,
            memory,
            stalls,
            WorkerStatistics(),
            self,
        )

    def on_held_time_spent(self) -> None:
        self.spent += 1

    def on_stall(self, is_stalled: bool) -> None:
        self.changes.append(is_stalled)

    @property
    def is_seen_stalled(self) -> bool:
        return self.theirs.is_stalled(self.rule.place, self.rule.client)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(2) as opened:
        opened.lock.open()
        yield opened


@pytest.mark.parametrize("everybody", [False, True])
def test_only_publishers_of_its_own_user_are_held_unless_a_rule_says_so(
    memory: SharedMemory, everybody: bool
) -> None:
    scene = Scene(memory, Limits(), everybody=everybody)
    assert scene.backpressure.may_hold(scene.account.place)
    assert scene.backpressure.may_hold(scene.account.place + 1) == everybody
    assert scene.backpressure.may_hold(NOBODY) == everybody
    assert scene.rule.holds == (ANYBODY if everybody else scene.account.place)
    assert scene.spent == 0


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


def test_all_workers_see_a_stall_and_waiting_workers_are_woken_once(memory: SharedMemory) -> None:
    scene = Scene(memory, Limits())
    for _ in range(2):
        scene.backpressure.stall()
        assert scene.backpressure.is_stalled
        assert scene.is_seen_stalled
    scene.theirs.wait(scene.rule.place)
    assert not was_woken(memory, 1)
    scene.backpressure.end_stall()
    assert not scene.backpressure.is_stalled
    assert not scene.is_seen_stalled
    assert not scene.theirs.any_stalled()
    assert was_woken(memory, 1)
    assert not was_woken(memory, 0)
    scene.backpressure.end_stall()
    assert not was_woken(memory, 1)


@given(
    st.integers(0, 2**63),
    *[IDS] * 5,
    st.booleans(),
    st.integers(0, 2**RULES_MAX - 1),
    st.binary(max_size=50),
)
def test_what_was_packed_is_what_other_workers_unpack(
    client: int,
    place: int,
    account: int,
    gid: int,
    uid: int,
    pid: int,
    everybody: bool,
    rules: int,
    pattern: bytes,
) -> None:
    profile = AccessProfile(publish=0, subscribe=rules, may_block_others=everybody)
    own = Credentials(gid, uid, pid)
    packed = BackpressureRule(client, place, account, own, profile).pack()
    got, rest = unpack_rule(client, packed + pattern)
    assert rest == pattern
    assert (got.client, got.place, got.account_place) == (client, place, account)
    assert (got.credentials, got.profile) == (own, profile)
