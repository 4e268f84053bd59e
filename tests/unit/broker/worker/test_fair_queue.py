"""Fair queueing: shares by cost and not by connections, as properties of long runs."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sbus.broker.worker.fair_queue import FairQueue

TURN = 64
USERS = 4


class Client:
    def __init__(self, account_place: int, number: int = 0) -> None:
        self.account_place = account_place
        self.number = number
        self.is_queued = False

    def __repr__(self) -> str:
        return f"{self.account_place}.{self.number}"


def enqueue(queue: FairQueue[Client], **clients_of: int) -> None:
    for name, count in clients_of.items():
        for number in range(count):
            queue.add(Client(ord(name), number))


def run(
    queue: FairQueue[Client], rounds: int, cost_of: Callable[[Client], int]
) -> tuple[Counter[int], list[Client]]:
    """Everybody always has more to do; the cost charged to each user, and who had turns."""
    charged: Counter[int] = Counter()
    served = []
    for _ in range(rounds):
        client = queue.next()
        assert client is not None
        cost = cost_of(client)
        queue.charge(client.account_place, cost)
        queue.add(client)
        charged[client.account_place] += cost
        served.append(client)
    return charged, served


def test_users_who_owe_nothing_are_forgotten() -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=1)
    run(queue, 1, lambda client: TURN)
    for user in range(1000, 3000):
        visitor = Client(user)
        queue.add(visitor)
        assert queue.next() is visitor
        queue.charge(user, TURN)
        run(queue, 2, lambda client: TURN)
        assert queue.users_known <= 100


def test_who_caused_more_than_its_share_sits_out_until_it_is_paid_for() -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=1, b=1)
    first = queue.next()
    assert first is not None
    queue.charge(first.account_place, 10 * TURN)
    queue.add(first)
    other = 0
    while (client := queue.next()) is not None and client is not first:
        other += 64
        queue.charge(client.account_place, 64)
        queue.add(client)
    assert 10 * TURN <= other <= 11 * TURN


def test_who_is_alone_need_not_sit_out() -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=1)
    _, served = run(queue, 10, lambda client: 1_000_000)
    assert len(served) == 10


@pytest.mark.parametrize("forgets", [False, True])
def test_charges_outlast_an_empty_queue_until_they_are_forgotten(forgets: bool) -> None:
    queue: FairQueue[Client] = FairQueue()
    mine, other = Client(1), Client(2)
    queue.add(other)
    queue.add(mine)
    for _ in range(2):
        client = queue.next()
        assert client is not None
        if client is mine:
            queue.charge(1, 100 * TURN)
    assert queue.next() is None
    if forgets:
        queue.forget_charges()
    queue.add(mine)
    queue.add(other)
    _, served = run(queue, 4, lambda client: TURN)
    turns = Counter(client.account_place for client in served)
    assert turns == ({1: 2, 2: 2} if forgets else {2: 4})


class Turns(RuleBasedStateMachine):
    """The queue beside a list of its clients, and what each user was charged."""

    @initialize()
    def begin(self) -> None:
        self.queue: FairQueue[Client] = FairQueue()
        self.clients = [Client(user, number) for user in range(USERS) for number in range(3)]
        self.line: list[Client] = []
        """In the order in which they came."""
        self.charged: Counter[int] = Counter()
        self.virtual_time = 0
        self.newcomers: list[int] = []
        """Users that came without a debt and have had no turn since, in their order."""
        self.serving: int | None = None
        """The user of the last turn counts as queued until the next one begins."""

    def queued(self) -> set[int]:
        return {client.account_place for client in self.line}

    @rule(picks=st.lists(st.integers(0, 3 * USERS - 1), min_size=1, max_size=4))
    def add(self, picks: list[int]) -> None:
        for pick in picks:
            self.add_client(self.clients[pick])

    def add_client(self, client: Client) -> None:
        user = client.account_place
        comes = user != self.serving and user not in self.queued()
        self.queue.add(client)
        assert client.is_queued
        if client in self.line:
            return
        self.line.append(client)
        if comes and self.charged[user] <= self.virtual_time:
            self.newcomers.append(user)
            self.charged[user] = self.virtual_time

    @rule(cost=st.integers(0, 500), stays=st.booleans())
    def serve(self, cost: int, stays: bool) -> None:
        client = self.queue.next()
        if not self.line:
            assert client is None
            self.serving = None
            return
        assert client is not None
        user = client.account_place
        assert client is next(it for it in self.line if it.account_place == user), "not its turn"
        assert not client.is_queued
        assert self.charged[user] == min(self.charged[it] for it in self.queued())
        first = [it for it in self.newcomers if self.charged[it] == self.charged[user]]
        assert user in first[:1] or not first, "one that comes without debt has the next turn"
        self.newcomers = [it for it in self.newcomers if it != user and it in self.queued()]
        self.line.remove(client)
        self.virtual_time = self.charged[user]
        self.serving = user
        self.charge(user, cost)
        if stays:
            self.add_client(client)

    @rule(user=st.integers(0, USERS - 1), cost=st.integers(1, 2_000))
    def charge(self, user: int, cost: int) -> None:
        """Also for work that shows only afterwards, of a user that waits for its turn."""
        self.queue.charge(user, cost)
        if user in self.charged:
            self.charged[user] += cost
            if cost and user != self.serving:
                self.newcomers = [it for it in self.newcomers if it != user]

    @precondition(lambda self: not self.line)
    @rule()
    def forget(self) -> None:
        """Nobody was kept waiting."""
        assert self.queue.next() is None
        self.queue.forget_charges()
        self.charged.clear()
        self.newcomers.clear()
        self.virtual_time, self.serving = 0, None


TestTurns = Turns.TestCase


@given(readers=st.integers(1, 50), writers=st.integers(1, 50))
def test_a_user_is_read_once_for_four_times_it_is_sent_to(readers: int, writers: int) -> None:
    """However many there are of each; and each kind in turn among itself."""
    queue: FairQueue[Client] = FairQueue()
    reading = [Client(1, number) for number in range(readers)]
    sending = [Client(1, -1 - number) for number in range(writers)]
    for each in reading:
        queue.add(each)
    for each in sending:
        queue.add(each, sending=True)
    served = []
    for _ in range(5 * (readers + writers)):
        client = queue.next()
        assert client is not None
        served.append(client)
        queue.charge(1, TURN)
        queue.add(client, sending=client.number < 0)
    assert [client.number < 0 for client in served] == [True, True, True, True, False] * (
        readers + writers
    )
    for kind in (reading, sending):
        own = [client for client in served if client in kind]
        assert own == [kind[at % len(kind)] for at in range(len(own))]


def test_who_is_only_sent_to_has_every_turn_of_its_user() -> None:
    queue: FairQueue[Client] = FairQueue()
    lags = Client(1)
    for _ in range(3):
        queue.add(lags, sending=True)
        assert queue.next() is lags
    assert queue.next() is None
