"""Accounts against sums over plain dictionaries: several workers, users that come and go."""

from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbus.limits import Limits
from sbus.shared import account_book
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    BUS,
    CONNECTIONS,
    DROPPED,
    HELD_TIME,
    HOLDING,
    PUBLISH_RATE,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTIONS,
    WAITING_BYTES,
    Account,
    Accounts,
)
from sbus.shared.held_time import SLICES
from tests.unit.shared.memories import account_memory

WORKERS = 3
USERS = [7, 8, 9, 10]
SECOND_NS = 1_000_000_000
WINDOW_NS = 60 * SECOND_NS
BURST_NS = SECOND_NS // 20
SLICE_NS = WINDOW_NS // SLICES
LIMITS = Limits(
    users_max=3,
    user_connections_max=2,
    user_subscriptions_max=12,
    user_subscription_bytes_max=100,
    user_backlog_bytes_max=60,
    user_messages_per_second_max=10,
    user_held_seconds_max=3.0,
    held_window_seconds=60.0,
    bus_subscription_bytes_max=130,
    bus_backlog_bytes_max=1_000,
)
UNLIMITED = 10**12
USER_QUOTAS = {SUBSCRIPTIONS: 12, SUBSCRIPTION_BYTES: 100, BACKLOG_BYTES: 60}
BUS_QUOTAS = {SUBSCRIPTIONS: UNLIMITED, SUBSCRIPTION_BYTES: 130, BACKLOG_BYTES: 1_000}
KINDS = st.sampled_from(list(USER_QUOTAS))
PICKS = st.integers(0, 100)


class Client:
    """A client as the model knows it: what it has taken."""

    def __init__(self, uid: int, worker: int, place: int) -> None:
        self.uid = uid
        self.worker = worker
        self.place = place
        self.taken: Counter[int] = Counter()


class User:
    """What must not be forgotten of a user, whether it is connected or not."""

    def __init__(self) -> None:
        self.paid_until_ns = 0
        self.held: list[tuple[int, int]] = []
        self.holding_since: dict[int, int] = {}
        """By worker."""

    def held_ns(self, now_ns: int, window_ns: int) -> int:
        """Time in the last window in which some worker was held."""
        open_holds = [(since, now_ns) for since in self.holding_since.values()]
        edges = sorted([*self.held, *open_holds])
        total, reached = 0, now_ns - window_ns
        for start, end in edges:
            start = max(start, reached)
            total += max(0, end - start)
            reached = max(reached, end)
        return total


class Accounting(RuleBasedStateMachine):
    """Clients take and give back, hold and publish, on workers that die; users change places."""

    @initialize()
    def begin(self) -> None:
        self.looking_always = patch.object(account_book, "_SEARCH_INTERVAL_NS", 0)
        self.looking_always.start()
        words = account_memory(WORKERS, LIMITS)
        self.book = AccountBook(words, WORKERS, LIMITS)
        self.views = [Accounts(words, WORKERS, LIMITS, worker) for worker in range(WORKERS)]
        self.clients: list[Client] = []
        self.users = {uid: User() for uid in USERS}
        self.places: dict[int, int] = {}
        self.lost: Counter[int] = Counter()
        self.lost_in_all = 0
        self.now_ns = 1_000 * SECOND_NS

    def teardown(self) -> None:
        self.looking_always.stop()

    def account(self, client: Client) -> Account:
        return self.views[client.worker][client.place]

    def pick(self, number: int) -> Client | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    def used(self, kind: int, uid: int | None = None) -> int:
        return sum(it.taken[kind] for it in self.clients if uid in (None, it.uid))

    def is_surely_idle(self, uid: int) -> bool:
        user = self.users[uid]
        return (
            not any(it.uid == uid for it in self.clients)
            and user.paid_until_ns <= self.now_ns
            and not user.holding_since
            and not user.held_ns(self.now_ns, WINDOW_NS + SLICE_NS)
        )

    # -- coming and going ----------------------------------------------------------------------
    @rule(uid=st.sampled_from(USERS), worker=st.integers(0, WORKERS - 1))
    def connect(self, uid: int, worker: int) -> None:
        before = self.places
        account = self.book.of(uid, LIMITS.user, self.now_ns)
        self.places = dict(self.book._places)
        for other in before.keys() - self.places.keys():
            del self.lost[other]  # what else it had must be nothing, as is checked with every step
        if account is None:
            assert len(self.places) == LIMITS.users_max
            assert uid not in before
            newer = list(self.places)[LIMITS.users_max // 2 :]
            assert not any(self.is_surely_idle(other) for other in newer)
            return
        assert account.uid == uid
        assert account.place == self.places[uid] == before.get(uid, account.place)
        for client in self.clients:
            assert client.place == self.places[client.uid]
        connections = sum(it.uid == uid for it in self.clients)
        assert account.connections == connections
        assert account.has_room_for_connection() == (connections < 2)
        if connections < 2:
            account.count_connection(1)
            self.clients.append(Client(uid, worker, account.place))

    @rule(pick=PICKS)
    def leave(self, pick: int) -> None:
        client = self.pick(pick)
        if client is None:
            return
        if not any(it is not client and it.uid == client.uid for it in self.clients):
            for worker in list(self.users[client.uid].holding_since):
                self.end_hold(client.uid, worker)
        for kind, taken in client.taken.items():
            self.account(client).count(kind, -taken)
        self.clients.remove(client)
        self.book[client.place].count_connection(-1)

    @rule(worker=st.integers(0, WORKERS - 1))
    def die(self, worker: int) -> None:
        """All that a worker's clients had is taken back, and they are gone."""
        self.book.reap(worker, self.now_ns)
        for user in self.users.values():
            since = user.holding_since.pop(worker, None)
            if since is not None:
                user.held.append((since, self.now_ns))
        for client in [it for it in self.clients if it.worker == worker]:
            self.clients.remove(client)
            self.book[client.place].count_connection(-1)

    @rule(step_ns=st.sampled_from([1, SECOND_NS // 10, SECOND_NS, 20 * SECOND_NS, WINDOW_NS]))
    def wait(self, step_ns: int) -> None:
        self.now_ns += step_ns

    # -- quotas --------------------------------------------------------------------------------
    @rule(pick=PICKS, kind=KINDS, more=st.integers(1, 40))
    def take(self, pick: int, kind: int, more: int) -> None:
        client = self.pick(pick)
        if client is None:
            return
        mine, users = client.taken[kind], self.used(kind, client.uid)
        left = min(USER_QUOTAS[kind] - users - mine, BUS_QUOTAS[kind] - self.used(kind) - users)
        most = max(0, left // 2)
        account = self.account(client)
        for some in {more, most, most + 1} - {0}:
            assert account.has_room(kind, some, mine) == (some <= most), "it leaves as much"
        if more <= most:
            account.count(kind, more)
            client.taken[kind] += more

    @rule(pick=PICKS, kind=KINDS)
    def give_back(self, pick: int, kind: int) -> None:
        client = self.pick(pick)
        if client is not None:
            part = (client.taken[kind] + 1) // 2
            self.account(client).count(kind, -part)
            client.taken[kind] -= part

    @rule(pick=PICKS, messages=st.integers(1, 9))
    def lose(self, pick: int, messages: int) -> None:
        client = self.pick(pick)
        if client is not None:
            self.account(client).count(DROPPED, messages)
            self.lost[client.uid] += messages
            self.lost_in_all += messages

    # -- time ----------------------------------------------------------------------------------
    @rule(pick=PICKS, messages=st.integers(1, 64))
    def publish(self, pick: int, messages: int) -> None:
        client = self.pick(pick)
        if client is None:
            return
        user = self.users[client.uid]
        delay_ns = self.account(client).publish_delay_ns(self.now_ns)
        assert delay_ns == max(0, user.paid_until_ns - self.now_ns - BURST_NS)
        if not delay_ns:
            self.account(client).pay_for(messages, self.now_ns)
            begun_ns = max(user.paid_until_ns, self.now_ns)
            user.paid_until_ns = begun_ns + messages * SECOND_NS // 10

    @rule(pick=PICKS, worker=st.integers(0, WORKERS - 1))
    def hold(self, pick: int, worker: int) -> None:
        """Clients of this user's, wherever they are, hold back publishers of a worker."""
        client = self.pick(pick)
        if client is not None:
            self.views[worker][client.place].begin_holding(self.now_ns)
            self.users[client.uid].holding_since.setdefault(worker, self.now_ns)

    @rule(pick=PICKS, worker=st.integers(0, WORKERS - 1))
    def hold_no_more(self, pick: int, worker: int) -> None:
        client = self.pick(pick)
        if client is not None:
            self.end_hold(client.uid, worker)

    def end_hold(self, uid: int, worker: int) -> None:
        self.views[worker][self.places[uid]].end_holding(self.now_ns)
        since = self.users[uid].holding_since.pop(worker, None)
        if since is not None:
            self.users[uid].held.append((since, self.now_ns))

    # -- what holds ----------------------------------------------------------------------------
    @invariant()
    def every_use_is_the_sum(self) -> None:
        for view in (*self.views, self.book):
            for kind in USER_QUOTAS:
                assert view[BUS].use(kind) == self.used(kind)
            assert view[BUS].use(DROPPED) == self.lost_in_all
            for uid, place in self.places.items():
                for kind in USER_QUOTAS:
                    assert view[place].use(kind) == self.used(kind, uid)
                assert view[place].use(DROPPED) == self.lost[uid]
                assert view[place].use(HOLDING) == len(self.users[uid].holding_since)

    @invariant()
    def nobodys_spent_time_is_forgotten(self) -> None:
        budget_ns = 3 * SECOND_NS
        for uid, user in self.users.items():
            least_ns = user.held_ns(self.now_ns, WINDOW_NS)
            most_ns = user.held_ns(self.now_ns, WINDOW_NS + SLICE_NS)
            if uid not in self.places:
                assert not least_ns
                assert user.paid_until_ns <= self.now_ns
                continue
            left_ns = self.views[0][self.places[uid]].held_left_ns(self.now_ns)
            assert max(0, budget_ns - most_ns) <= left_ns <= max(0, budget_ns - least_ns)


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(
    max_examples=3 * settings().max_examples // 2, stateful_step_count=50
)


# -- quotas that leave something to others ---------------------------------------------------------
def opened(limits: Limits, *uids: int) -> list[Account]:
    book = AccountBook(account_memory(1, limits), 1, limits)
    accounts = [book.of(uid, limits.user, 0) for uid in uids]
    assert all(accounts)
    return [account for account in accounts if account is not None]


# -- places and reports ----------------------------------------------------------------------------


def test_the_newest_account_makes_room_and_the_older_half_never_does() -> None:
    limits = Limits(users_max=6)
    book = AccountBook(account_memory(1, limits), 1, limits)
    for uid in range(6):
        assert book.of(uid, limits.user, 0) is not None
    for newcomer, closed in ((10, 5), (11, 10), (12, 11)):
        assert book.of(newcomer, limits.user, 0) is not None
        assert book.find(closed) is None
    assert book.uids() == [0, 1, 2, 3, 4, 12]
    for uid in (4, 12):
        found = book.find(uid)
        assert found is not None
        found.count_connection(1)
    assert book.of(13, limits.user, 0) is not None
    assert book.uids() == [0, 1, 2, 4, 12, 13]
    book.of(13, limits.user, 0).count_connection(1)  # type: ignore[union-attr]
    assert book.of(14, limits.user, 0) is None
    assert book.of(14, limits.user, SECOND_NS) is None, "the older half stays"


def test_each_limit_is_reported_once_in_an_interval() -> None:
    limits = Limits()
    one, other = opened(limits, 1, 2)
    kinds = [SUBSCRIPTIONS, SUBSCRIPTION_BYTES, BACKLOG_BYTES, PUBLISH_RATE, HELD_TIME, CONNECTIONS]
    for limit in kinds:
        now_ns = 5 * SECOND_NS
        assert one.is_report_due(limit, now_ns, SECOND_NS), "never reported yet"
        one.note_report(limit, now_ns)
        assert not one.is_report_due(limit, now_ns + SECOND_NS - 1, SECOND_NS)
        assert one.is_report_due(limit, now_ns + SECOND_NS, SECOND_NS)
        assert other.is_report_due(limit, now_ns, SECOND_NS), "another user was reported"


@pytest.mark.parametrize("dies", [False, True])
def test_a_user_holds_from_the_first_worker_to_the_last(dies: bool) -> None:
    limits = Limits()
    words = account_memory(2, limits)
    book = AccountBook(words, 2, limits)
    account = book.of(1, limits.user, 0)
    assert account is not None
    views = [Accounts(words, 2, limits, worker)[account.place] for worker in range(2)]
    for at_seconds, worker in ((100, 0), (101, 1), (102, 0)):
        views[worker].begin_holding(at_seconds * SECOND_NS)
    if dies:
        book.reap(0, 103 * SECOND_NS)
    else:
        views[0].end_holding(103 * SECOND_NS)
    assert account.held_left_ns(104 * SECOND_NS) == 6 * SECOND_NS
    views[1].end_holding(105 * SECOND_NS)
    views[1].end_holding(106 * SECOND_NS)
    assert account.held_left_ns(107 * SECOND_NS) == 5 * SECOND_NS
    assert account.use(HOLDING) == 0


def test_as_much_may_wait_as_backlogs_may_contain_but_always_one_batch() -> None:
    limits = Limits(user_backlog_bytes_max=1_000)
    words = account_memory(2, limits)
    account = AccountBook(words, 2, limits).of(1, limits.user, 0)
    assert account is not None
    here, there = (Accounts(words, 2, limits, worker)[account.place] for worker in range(2))
    assert there.may_read(5_000), "or nothing could ever be read"
    here.count(WAITING_BYTES, 600)
    assert there.may_read(400)
    assert not there.may_read(401)
    assert not here.may_read(401)
    here.count(WAITING_BYTES, -600)
    assert there.may_read(5_000)


def test_a_bus_that_goes_on_finds_the_accounts_where_they_were() -> None:
    words = account_memory(2, LIMITS)
    book = AccountBook(words, 2, LIMITS)
    accounts = [book.of(uid, LIMITS.user, 0) for uid in (0, 9, 7)]
    assert all(accounts)
    for account in accounts:
        assert account is not None
        account.count_connection(1)
        account.count(DROPPED, 5)
    resumed = AccountBook(words, 2, LIMITS)
    resumed.resume()
    assert sorted(resumed.uids()) == [0, 7, 9]
    for account in accounts:
        assert account is not None
        found = resumed.of(account.uid, LIMITS.user, 0)
        assert found is not None
        assert (found.place, found.connections, found.use(DROPPED)) == (account.place, 0, 5)


def test_in_a_memory_without_accounts_all_places_are_free() -> None:
    book = AccountBook(account_memory(2, LIMITS), 2, LIMITS)
    book.resume()
    assert all(book.of(uid, LIMITS.user, 0) for uid in USERS[: LIMITS.users_max])
