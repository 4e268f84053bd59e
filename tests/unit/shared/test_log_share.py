"""Users share what a busy worker walks, whatever they bring to bear.

Simulated: worker 0 walks so much in a step, and on the other workers every connection of every user
tries to append more than that, unless it waits. What a user got is counted in bytes.
"""

import random
from collections.abc import Mapping

import pytest

from sbus.limits import Limits
from sbus.shared.accounts import Accounts
from sbus.shared.ordered_log import WINDOW_SECONDS, OrderedLog
from sbus.shared.shared_memory import SharedMemory
from tests.unit.shared.memories import log_block_of, open_memory

WORKERS = 8
WALKED_PER_STEP = 2_000
STEPS = 1_500
ATTEMPTS_PER_STEP = 3
PRICE_NOTES = 50
"""After which a price is known as it is."""
LIMITS = Limits()
LARGE, SMALL = 5_000, 160


class Simulation:
    """`users`: for each how many workers it is on, and how many bytes it sends at once."""

    def __init__(self, memory: SharedMemory, users: dict[int, tuple[int, int]]) -> None:
        self.memory = memory
        accounts = Accounts(memory.accounts, WORKERS, LIMITS)
        self.shares = {uid: accounts[uid].log_share for uid in users}
        self.blocks = {
            uid: log_block_of(uid, uid, [(1, b"MSG k\0" + bytes(size), 1)])
            for uid, (_, size) in users.items()
        }
        self.got = dict.fromkeys(users, 0)
        self.connections = [
            (uid, 1 + number) for uid, (workers, _) in users.items() for number in range(workers)
        ]
        self.waiting: set[tuple[int, int]] = set()
        self.random = random.Random(len(users))
        self.logs = [OrderedLog(memory, worker) for worker in range(WORKERS)]
        with memory.lock as words:
            for log in self.logs:
                log.start(words)
        self.logs[0].note_pace(60_000, WINDOW_SECONDS)

    def step(self) -> None:
        for _ in range(ATTEMPTS_PER_STEP):
            self.random.shuffle(self.connections)
            for uid, worker in self.connections:
                if (uid, worker) not in self.waiting:
                    self.append(uid, worker)
        with self.memory.lock as words:
            end = self.logs[0].destined_end(words)
            for _ in self.logs[0].walk(min(end, self.logs[0].cursor + WALKED_PER_STEP)):
                pass
            wake = self.logs[0].share_cursor(words)
        self.waiting = {one for one in self.waiting if not wake >> one[1] & 1}

    def append(self, uid: int, worker: int) -> None:
        with self.memory.lock as words:
            if self.logs[worker].append(words, self.blocks[uid], self.shares[uid]) < 0:
                self.waiting.add((uid, worker))
            else:
                self.got[uid] += len(self.blocks[uid].data)


def run(
    users: dict[int, tuple[int, int]], prices: Mapping[int, float] | None = None
) -> dict[int, int]:
    with open_memory(WORKERS, LIMITS) as memory:
        memory.lock.open()
        simulation = Simulation(memory, users)
        for uid, price in (prices or {}).items():
            for _ in range(PRICE_NOTES):
                simulation.shares[uid].note_price(0, price)
        for _ in range(STEPS):
            simulation.step()
        return simulation.got


def test_seven_workers_full_of_connections_get_no_more_than_one_connection() -> None:
    got = run({1: (7, LARGE), 2: (1, LARGE)})
    assert got[1] == pytest.approx(got[2], rel=0.05)


def test_four_users_get_a_quarter_each() -> None:
    got = run({1: (7, LARGE), 2: (1, LARGE), 3: (1, 2 * LARGE), 4: (3, LARGE // 2)})
    for uid in got:
        assert got[uid] == pytest.approx(sum(got.values()) / 4, rel=0.05)


def test_a_user_that_sends_less_than_its_share_never_waits() -> None:
    got = run({1: (7, LARGE), 2: (1, SMALL)})
    assert got[2] >= STEPS * SMALL


def test_a_single_user_gets_the_whole_log() -> None:
    got = run({1: (7, LARGE)})
    assert got[1] >= 0.95 * STEPS * WALKED_PER_STEP


def test_what_some_users_do_not_use_goes_to_the_others() -> None:
    got = run({1: (7, LARGE), 2: (1, SMALL), 3: (1, SMALL)})
    assert sum(got.values()) >= 0.95 * STEPS * WALKED_PER_STEP


@pytest.mark.parametrize("price", [2.0, 8.0])
def test_users_whose_bytes_cost_more_append_fewer(price: float) -> None:
    got = run({1: (7, LARGE), 2: (1, LARGE)}, {1: price})
    assert got[1] * price == pytest.approx(got[2], rel=0.1)
