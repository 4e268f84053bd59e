"""The wait queue against a plain list of who waits, and for what."""

import math
from collections import Counter
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbus.broker.worker import wait_queue as waiting_module
from sbus.broker.worker.session import Session
from sbus.broker.worker.wait_queue import FOR_ROOM, Reason, Wait, WaitQueue

USERS = 2
ACCOUNTS = [5, 6]
CLIENTS = 8
PATIENCE_NS = waiting_module._NEXT_OF_USER_NS
PICKS = st.integers(0, 100)


class Client:
    """All that the wait queue knows of a session; and what the model does."""

    def __init__(self, number: int) -> None:
        self.client = number
        self.account_place = number % USERS
        self.waiting_bytes = 0
        self.wait: Wait | None = None
        """What it waits for."""
        self.tries = False
        """It was released, and how that ended is not known yet."""
        self.holder: int | None = None
        """The account whose client it found stalled when it tried last."""


def as_session(client: Client) -> Session:
    return cast(Session, client)


class Waiting(RuleBasedStateMachine):
    """Clients that come, try, wait, are released and leave, in any order."""

    @initialize()
    def begin(self) -> None:
        self.ended: Counter[int] = Counter()
        self.queue = WaitQueue(lambda account: self.ended.update([account]))
        self.clients = [Client(number) for number in range(CLIENTS)]
        self.numbers = CLIENTS
        self.now_ns = 1_000_000_000
        self.lines: dict[int, list[Client]] = {uid: [] for uid in range(USERS)}
        """Who waits for the rate."""
        self.released: dict[int, Client] = {}
        """Who of a user was released last, while it has not tried."""

    def waiting(self, *reasons: Reason) -> list[Client]:
        return [it for it in self.clients if it.wait is not None and it.wait.reason in reasons]

    def set_holder(self, client: Client, account: int | None) -> None:
        """Expect `end_holding` when the last client that an account holds is held no more."""
        before, client.holder = client.holder, account
        left = [it.holder for it in self.clients]
        assert self.ended == Counter([before] if before not in [None, *left] else [])
        self.ended.clear()

    # -- trying --------------------------------------------------------------------------------
    @rule(
        pick=PICKS,
        reason=st.sampled_from(Reason),
        delay_ns=st.sampled_from([1, PATIENCE_NS // 2, 3 * PATIENCE_NS]),
        account=st.sampled_from(ACCOUNTS),
    )
    def try_in_vain(self, pick: int, reason: Reason, delay_ns: int, account: int) -> None:
        client = self.free(pick)
        if client is None:
            return
        wait = FOR_ROOM
        if reason is not Reason.ROOM:
            until_ns = self.now_ns + delay_ns
            wait = Wait(reason, until_ns, account if reason is Reason.STALL else 0)
        self.queue.add(as_session(client), wait)
        was_next = self.comes_back(client)
        client.wait, client.tries = wait, False
        if reason is Reason.RATE:
            self.lines[client.account_place].insert(
                0 if was_next else len(self.lines[client.account_place]), client
            )
        self.set_holder(client, account if reason is Reason.STALL else None)

    @rule(pick=PICKS)
    def try_and_get_on(self, pick: int) -> None:
        client = self.free(pick)
        if client is not None:
            self.get_on(client)

    def get_on(self, client: Client) -> None:
        self.queue.record_success(as_session(client))
        if self.comes_back(client) and self.lines[client.account_place]:
            assert self.queue.next_ns <= self.now_ns, "its user's next client goes at once"
        client.tries = False
        self.set_holder(client, None)

    def comes_back(self, client: Client) -> bool:
        """It has tried, or left: whether its user's others were waiting for that."""
        was_next = self.released.get(client.account_place) is client
        if was_next:
            del self.released[client.account_place]
        return was_next

    def free(self, pick: int) -> Client | None:
        free = [it for it in self.clients if it.wait is None]
        return free[pick % len(free)] if free else None

    # -- being released ---------------------------------------------------------------------------
    @rule()
    def wake(self) -> None:
        assert self.taken(self.queue.release_woken()) == self.waiting(Reason.ROOM, Reason.STALL)
        self.note_released(self.waiting(Reason.ROOM, Reason.STALL))

    def taken(self, sessions: list[Session]) -> list[Client]:
        clients = [cast(Client, session) for session in sessions]
        assert len({client.client for client in clients}) == len(clients), "released twice"
        return sorted(clients, key=self.clients.index)

    def note_released(self, clients: list[Client]) -> None:
        for client in clients:
            client.wait, client.tries = None, True

    @rule(step_ns=st.sampled_from([0, 1, PATIENCE_NS, 4 * PATIENCE_NS]))
    def time_passes(self, step_ns: int) -> None:
        self.now_ns += step_ns
        others = self.waiting(Reason.ROOM, Reason.STALL)
        overdue = [
            it
            for it in self.waiting(Reason.STALL)
            if it.wait is not None and it.wait.until_ns <= self.now_ns
        ]
        sessions = self.taken(self.queue.release_due(self.now_ns))
        of_rate = [it for it in sessions if it.wait is not None and it.wait.reason is Reason.RATE]
        assert len({it.account_place for it in of_rate}) == len(of_rate), "one of a user at a time"
        for client in of_rate:
            assert client is self.lines[client.account_place].pop(0), "in their order"
            self.released[client.account_place] = client
        rest = [it for it in sessions if it not in of_rate]
        assert rest in ([], others), "all who might get on, or nobody"
        assert not overdue or rest
        self.note_released(sessions)

    # -- leaving -------------------------------------------------------------------------------
    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        """A client leaves whatever it does, and another one comes."""
        client = self.clients.pop(pick % CLIENTS)
        self.queue.remove(as_session(client))
        if client in self.lines[client.account_place]:
            self.lines[client.account_place].remove(client)
        self.comes_back(client)
        self.set_holder(client, None)
        self.numbers += 1
        self.clients.append(Client(self.numbers))

    # -- what holds ----------------------------------------------------------------------------
    @invariant()
    def it_knows_who_waits(self) -> None:
        for client in self.clients:
            assert (as_session(client) in self.queue) == (client.wait is not None)
        assert self.queue.has_room_waiters() == bool(self.waiting(Reason.ROOM))
        waits_for_a_time = self.waiting(Reason.STALL, Reason.RATE)
        assert not waits_for_a_time or not math.isinf(self.queue.seconds_until_due())
        for client in self.waiting(Reason.STALL):
            assert client.wait is not None
            assert self.queue.next_ns <= client.wait.until_ns

    @invariant()
    def it_remembers_no_more_than_there_is(self) -> None:
        queue = self.queue
        assert len(queue._waits) <= CLIENTS
        assert len(queue._account_of_stall) <= CLIENTS
        assert sum(queue._holding.values()) == len(queue._account_of_stall)
        assert all(queue._queues.values())
        assert len(queue._next_of_user) <= USERS
        assert len(queue._due_ns) <= USERS + len(ACCOUNTS)

    def teardown(self) -> None:
        """All are released in the end, if released clients get on; then nothing is left."""
        rounds = 0
        while True:
            tries = [it for it in self.clients if it.tries]
            for client in tries:
                self.get_on(client)
            if not self.waiting(Reason.STALL, Reason.RATE):
                break
            rounds += 1
            assert rounds <= 2 * CLIENTS + USERS + len(ACCOUNTS)
            self.time_passes(max(0, self.queue.next_ns - self.now_ns))
        self.wake()
        for client in self.clients:
            self.queue.record_success(as_session(client))
        self.queue.release_due(self.now_ns + 100 * PATIENCE_NS)
        assert math.isinf(self.queue.seconds_until_due())
        queue = self.queue
        assert not any([queue._waits, queue._wakeable, queue._queues, queue._due_ns])
        assert not any([queue._next_of_user, queue._account_of_stall, queue._holding])


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)


def test_who_does_not_get_on_keeps_the_others_waiting_for_a_moment_only() -> None:
    queue = WaitQueue(lambda _: None)
    first, second = Client(0), Client(2)
    for client in (first, second):
        queue.add(as_session(client), Wait(Reason.RATE, 1_000))
    assert queue.release_due(1_000) == [as_session(first)]
    assert queue.release_due(1_000 + PATIENCE_NS - 1) == []
    assert queue.release_due(1_000 + PATIENCE_NS) == [as_session(second)]


def test_a_later_wait_does_not_put_an_earlier_one_off() -> None:
    """For its user's rate a client is released alone, and tells for all when it waits again."""
    queue = WaitQueue(lambda _account: None)
    first, second, held, also_held = (as_session(Client(USERS * number)) for number in range(4))
    queue.add(first, Wait(Reason.RATE, 100))
    queue.add(second, Wait(Reason.RATE, 200))
    queue.add(held, Wait(Reason.STALL, 100, ACCOUNTS[0]))
    queue.add(also_held, Wait(Reason.STALL, 200, ACCOUNTS[0]))
    assert queue.next_ns == 100
    assert queue.release_due(100) == [first, held, also_held]
    queue.add(first, Wait(Reason.RATE, 4 * PATIENCE_NS))
    assert queue.release_due(2 * PATIENCE_NS) == []
    assert queue.release_due(4 * PATIENCE_NS) == [first]
