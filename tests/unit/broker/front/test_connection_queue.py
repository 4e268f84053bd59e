"""The connection queue against its specification: turns by user, and a rate for each of them."""

import math
import socket
from collections import Counter
from typing import cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sbus.broker.front.connection_queue import AcceptedClient, ConnectionQueue
from sbus.limits import Limits
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import Account
from sbus.unix.credentials import Credentials
from tests.unit.shared.memories import account_memory

SECOND_NS = 1_000_000_000
ANN, BOB, CAT = 1, 2, 3
RATE = 10
MOST = 5
LIMITS = Limits(users_max=3, user_connections_max=MOST, user_connections_per_second_max=RATE)


class Scene:
    """A queue, and the accounts of three users."""

    def __init__(self) -> None:
        self.queue = ConnectionQueue()
        self.added: Counter[int] = Counter()
        """Clients of each user, whose process ids are their numbers."""
        self.book = AccountBook(account_memory(1, LIMITS), 1, LIMITS)

    def account(self, uid: int) -> Account:
        account = self.book.of(uid, LIMITS.user, 0)
        assert account is not None
        return account

    def add(self, uid: int, count: int = 1) -> None:
        for _ in range(count):
            own = Credentials(gid=uid, uid=uid, pid=self.added[uid])
            self.added[uid] += 1
            self.queue.add(AcceptedClient(cast(socket.socket, None), own, self.account(uid)))

    def take(self, now_ns: int) -> int | None:
        """The user of the client whose turn it is."""
        client = self.queue.take(now_ns)
        return None if client is None else client.credentials.uid


def test_who_has_had_few_connections_goes_first() -> None:
    scene = Scene()
    scene.add(ANN, 3)
    assert [scene.take(SECOND_NS) for _ in range(2)] == [ANN, ANN]
    scene.add(BOB)
    assert scene.take(SECOND_NS) == BOB


def test_a_user_that_may_have_more_connections_has_no_more_turns() -> None:
    scene = Scene()
    scene.account(ANN).limit(msgspec.structs.replace(LIMITS.user, connections_max=100))
    scene.add(ANN, MOST)
    scene.add(BOB, MOST)
    assert [scene.take(SECOND_NS) for _ in range(6)] == [ANN, BOB] * 3


def test_after_a_pause_all_connections_may_come_at_once() -> None:
    scene = Scene()
    scene.add(ANN, 2 * MOST)
    for now_ns in (SECOND_NS, 60 * SECOND_NS):
        assert [scene.take(now_ns) for _ in range(MOST)] == [ANN] * MOST


@given(
    st.lists(
        st.tuples(st.sampled_from([ANN, BOB, CAT]), st.integers(0, 3), st.integers(0, SECOND_NS)),
        max_size=60,
    )
)
def test_no_user_exceeds_its_rate_and_no_client_is_lost(steps: list[tuple[int, int, int]]) -> None:
    scene = Scene()
    now_ns = SECOND_NS
    taken: Counter[int] = Counter()
    for uid, count, pause_ns in steps:
        scene.add(uid, count)
        while (client := scene.queue.take(now_ns)) is not None:
            own = client.credentials
            assert own.pid == taken[own.uid], "a user's own clients keep their order"
            taken[own.uid] += 1
        waiting = [one for one in scene.added if taken[one] < scene.added[one]]
        for one in scene.added:
            seconds = (now_ns - SECOND_NS) / SECOND_NS
            assert taken[one] <= MOST + seconds * RATE
        due_ns = [scene.account(one).next_admission_ns() for one in waiting]
        assert scene.queue.due_ns() == min(due_ns, default=math.inf) > now_ns
        now_ns += pause_ns
    left = Counter(client.credentials.uid for client in scene.queue.take_all())
    assert taken + left == +scene.added
    assert scene.queue.due_ns() == math.inf
