"""Fair queueing: shares by cost and not by connections, as properties of long runs."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sbus.broker.worker.fair_queue import FairQueue

TURN = 64


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


@given(
    clients=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    costs=st.tuples(
        st.lists(st.integers(1, 1000), min_size=1, max_size=5),
        st.lists(st.integers(1, 1000), min_size=1, max_size=5),
    ),
)
def test_two_users_who_always_want_more_get_equal_shares(
    clients: tuple[int, int], costs: tuple[list[int], list[int]]
) -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=clients[0], b=clients[1])
    served: Counter[int] = Counter()

    def cost(client: Client) -> int:
        own = costs[client.account_place - ord("a")]
        served[client.account_place] += 1
        return own[served[client.account_place] % len(own)]

    charged, _ = run(queue, 1000, cost)
    largest = max(max(own) for own in costs)
    assert abs(charged[ord("a")] - charged[ord("b")]) <= largest


def test_two_hundred_connections_delay_another_user_by_no_turn() -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=200)
    run(queue, 300, lambda client: TURN)
    enqueue(queue, b=1)
    client = queue.next()
    assert client is not None
    assert client.account_place == ord("b")


@given(others=st.integers(1, 5), own_cost=st.integers(1, TURN), away=st.integers(0, 400))
def test_who_wants_little_has_the_next_turn_whenever_it_comes(
    others: int, own_cost: int, away: int
) -> None:
    """B, that wants less than its share, among users that always want more."""
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, **dict.fromkeys("cdefg"[:others], 50))
    own = Client(ord("b"))
    run(queue, 10 * others, lambda client: TURN)
    for _ in range(20):
        queue.add(own)
        assert queue.next() is own
        queue.charge(own.account_place, own_cost)
        # Everybody has been charged a turn more than B; then B is away, for longer or not.
        run(queue, 2 * others + away, lambda client: TURN)


def test_leaving_and_coming_back_does_not_pay() -> None:
    """A user that leaves the queue after each turn gets no more than one that stays."""
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=3)
    visitor = Client(ord("b"))
    charged: Counter[int] = Counter()
    queue.add(visitor)
    for _ in range(1000):
        client = queue.next()
        assert client is not None
        cost = 1 if client.account_place == ord("a") else 4 * TURN
        queue.charge(client.account_place, cost)
        charged[client.account_place] += cost
        if client is not visitor:
            queue.add(client)
        queue.add(visitor)
    assert charged[ord("b")] <= charged[ord("a")] + 4 * TURN


def test_staying_away_saves_nothing_up() -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=1)
    run(queue, 1000, lambda client: TURN)
    enqueue(queue, b=1)
    charged, _ = run(queue, 100, lambda client: TURN)
    assert abs(charged[ord("a")] - charged[ord("b")]) <= TURN


def test_a_crowd_of_newcomers_is_served_in_the_order_of_its_coming() -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=5)
    run(queue, 10, lambda client: TURN)
    crowd = [Client(1000 + number) for number in range(50)]
    for client in crowd:
        queue.add(client)
    served = []
    for _ in crowd:
        newcomer = queue.next()
        assert newcomer is not None
        served.append(newcomer)
        queue.charge(newcomer.account_place, TURN)
        queue.add(newcomer)
    assert served == crowd


def test_a_charge_while_in_line_counts_too() -> None:
    """Work that shows only afterwards, for a user that waits for its turn."""
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=1, b=1, c=1)
    queue.charge(ord("b"), 10 * TURN)
    charged, _ = run(queue, 20, lambda client: TURN)
    assert charged[ord("a")] == charged[ord("c")] == 10 * TURN


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


@pytest.mark.parametrize("count", [1, 2, 7])
def test_clients_of_one_user_take_turns(count: int) -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=count, b=3)
    _, served = run(queue, 40 * count, lambda client: 10)
    numbers = [client.number for client in served if client.account_place == ord("a")]
    assert numbers == [at % count for at in range(len(numbers))]


def test_a_charge_to_somebody_unknown_changes_nothing() -> None:
    queue: FairQueue[Client] = FairQueue()
    queue.charge(5, 100)
    assert queue.next() is None


class StandingInLine(RuleBasedStateMachine):
    """A queued client is queued once, is served once, and in the order of its user."""

    @initialize()
    def begin(self) -> None:
        self.queue: FairQueue[Client] = FairQueue()
        self.clients = [Client(user, number) for user in range(3) for number in range(3)]
        self.lines: dict[int, list[Client]] = {0: [], 1: [], 2: []}

    @rule(pick=st.integers(0, 8))
    def add(self, pick: int) -> None:
        client = self.clients[pick]
        self.queue.add(client)
        line = self.lines[client.account_place]
        if client not in line:
            line.append(client)
        assert client.is_queued

    @rule(cost=st.integers(0, 2000))
    def serve(self, cost: int) -> None:
        client = self.queue.next()
        if client is None:
            assert not any(self.lines.values())
            return
        assert client is self.lines[client.account_place].pop(0)
        assert not client.is_queued
        self.queue.charge(client.account_place, cost)

    @precondition(lambda self: any(self.lines.values()))
    @rule()
    def serve_all(self) -> None:
        served = []
        while (client := self.queue.next()) is not None:
            served.append(client)
            assert client is self.lines[client.account_place].pop(0)
        assert not any(self.lines.values())


TestStandingInLine = StandingInLine.TestCase


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
