"""Contract: whose turn is next.

Start-time fair queueing of users: the next turn is that of a queued user that was charged least. A
user that comes is charged at least what the last turn began with, so that idling saves nothing up,
and leaving cancels no charge. So a user's share does not depend on its number of clients.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sbus.broker.worker.fair_queue import FairQueue
from tests.contracts.lab import LIMITS, UID, lab

USERS = 4
CLIENTS_EACH = 3
COSTS = st.sampled_from([0, 0, 1, 1, 50])
"""Few, so that users often were charged the same."""


class Ready:
    """A client that may be queued."""

    def __init__(self, user: int, number: int) -> None:
        self.account_place = user
        self.number = number
        self.is_queued = False


class Turns(RuleBasedStateMachine):
    """The queue beside a list of its clients, and what each user was charged."""

    @initialize()
    def begin(self) -> None:
        self.queue: FairQueue[Ready] = FairQueue()
        self.clients = [Ready(user, at) for user in range(USERS) for at in range(CLIENTS_EACH)]
        self.line: list[Ready] = []
        """In the order in which they came."""
        self.charged = [0] * USERS
        self.known: set[int] = set()
        self.virtual_time = 0
        self.newcomers: list[int] = []
        """Users that came without a debt and have had no turn since, in their order."""
        self.serving: int | None = None
        """The user of the last turn counts as queued until the next one begins."""

    @rule(picks=st.lists(st.integers(0, USERS * CLIENTS_EACH - 1), min_size=1, max_size=4))
    def add_some(self, picks: list[int]) -> None:
        for pick in picks:
            self.add(pick)

    def add(self, pick: int) -> None:
        client = self.clients[pick]
        user = client.account_place
        was_queued = user == self.serving or any(it.account_place == user for it in self.line)
        self.queue.add(client)
        assert client.is_queued
        if client in self.line:
            return
        self.line.append(client)
        self.known.add(user)
        if not was_queued:
            if self.charged[user] <= self.virtual_time:
                self.newcomers.append(user)
            self.charged[user] = max(self.charged[user], self.virtual_time)

    def serve(self, cost: int, *, stays: bool) -> None:
        client = self.queue.next()
        if not self.line:
            assert client is None
            self.serving = None
            return
        assert client is not None
        user = client.account_place
        queued = {it.account_place for it in self.line}
        assert client is next(it for it in self.line if it.account_place == user), "not its turn"
        assert not client.is_queued
        assert self.charged[user] == min(self.charged[it] for it in queued), (
            "another was charged less"
        )
        first = [it for it in self.newcomers if self.charged[it] == self.charged[user]]
        assert not first or user == first[0], "one that comes without debt has the next turn"
        self.newcomers = [it for it in self.newcomers if it != user and it in queued]
        self.line.remove(client)
        self.virtual_time = self.charged[user]
        self.serving = user
        self.charge(user, cost)
        if stays:
            self.add(self.clients.index(client))

    def charge(self, user: int, cost: int) -> None:
        self.queue.charge(user, cost)
        if user in self.known:
            self.charged[user] += cost
            if cost and user != self.serving:
                self.newcomers = [it for it in self.newcomers if it != user]

    @rule(costs=st.lists(COSTS, min_size=1, max_size=3), stays=st.booleans())
    def serve_some(self, costs: list[int], stays: bool) -> None:
        for cost in costs:
            self.serve(cost, stays=stays)

    @rule(user=st.integers(0, USERS - 1), cost=st.sampled_from([1, 50, 2_000]))
    def charge_for_work_elsewhere(self, user: int, cost: int) -> None:
        self.charge(user, cost)

    @precondition(lambda self: not self.line)
    @rule()
    def forget(self) -> None:
        """Nobody was kept waiting, here or elsewhere."""
        assert self.queue.next() is None
        self.queue.forget_charges()
        self.begin_again()

    def begin_again(self) -> None:
        self.charged = [0] * USERS
        self.known.clear()
        self.newcomers.clear()
        self.virtual_time, self.serving = 0, None


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=100, stateful_step_count=40)


# -- as clients see it -----------------------------------------------------------------------------
@settings(max_examples=8)
@given(crowd=st.integers(1, 8), fan_out=st.sampled_from([1, 1, 12]), size=st.sampled_from([0, 300]))
def test_a_crowd_gets_what_one_client_gets(crowd: int, fan_out: int, size: int) -> None:
    """All have more to say than there is time for. A message to many is as much work as many."""
    with lab() as opened:
        readers = [opened.connect(0, UID + 2) for _ in range(fan_out)]
        readers[0].say(b"SUB ")
        for reader in readers[1:]:
            reader.say(b"SUB crowd")
        crowded = [opened.connect(0, UID) for _ in range(crowd)]
        alone = opened.connect(0, UID + 1)
        talkers = [*((it, b"crowd") for it in crowded), (alone, b"alone")]
        for client, key in talkers:  # to look up a new key is charged by its time
            client.say(b"MSG %b\0" % key)
        for reader in readers:
            reader.read_all()
        for client, key in talkers:
            client.send(*[b"MSG %b\0" % key + bytes(size)] * 130)
        counts = {b"crowd": 0, b"alone": 0}
        ticks = 0
        while sum(counts.values()) < 100:
            ticks += 1
            assert ticks < 10_000, "nobody is served"
            opened.bus.stepped[0].tick()
            for packet in readers[0].read():
                counts[packet[4 : packet.index(0)]] += 1
            for reader in readers[1:]:
                reader.read()
        turn = LIMITS.quantum_units
        if fan_out == 1:
            assert abs(counts[b"crowd"] - counts[b"alone"]) <= turn, counts
        else:
            assert counts[b"alone"] > 2 * counts[b"crowd"], counts
        opened.settle()
