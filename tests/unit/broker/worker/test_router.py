"""The router: whose messages go where, and never by an outdated route."""

from collections import Counter
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.delivery.backpressure import ANYBODY, BackpressureRule
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.broker.worker.router import Route, Router
from sbus.limits import Limits
from sbus.protocol.keys import SLASH
from sbus.shared.subscription_table import (
    RULE_ADDED,
    RULE_REMOVED,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WORKER_RESET,
    Record,
)
from sbus.unix.credentials import Credentials
from tests.unit.routing.specification import matches

OWN = 1
KEYS = [b"a", b"b", b"a/b", b"a/b/c", b"c"]
SOMEBODY = Credentials(gid=10, uid=1000, pid=4711)
PATTERNS = [b"a", b"a/*", b"a/", b"", b"*", b"a**", b"a*", b"a*b"]


class SomeOutbox:
    """Nothing is delivered to it."""

    slot_at = 0

    @property
    def outbox(self) -> "SomeOutbox":
        return self


def outbox() -> Outbox:
    """Something to be routed to."""
    return cast(Outbox, SomeOutbox())


def new_router() -> Router:
    return Router(OWN, SLASH, Limits())


def shared(pattern: bytes) -> bytes:
    return new_router().shared_pattern(pattern)


def remote(worker: int, pattern: bytes, *, kind: int = SUBSCRIBED, edge: bool = True) -> Record:
    return Record(kind, edge, worker, 1, pattern)


def backpressure_rule(client: int) -> BackpressureRule:
    return BackpressureRule(client, client + 100, 1, SOMEBODY, AccessProfile(0, 0, False))


def all_rules(route: Route) -> list[BackpressureRule]:
    """The rules of all users together."""
    return [found for rules in route.backpressure_rules.values() for found in rules]


def held_by(
    rule: BackpressureRule, worker: int, pattern: bytes, *, kind: int = RULE_ADDED
) -> Record:
    return Record(kind, True, worker, rule.client, rule.pack() + pattern)


class Routing(RuleBasedStateMachine):
    """Any subscriptions, here and elsewhere: every route is that of now."""

    @initialize()
    def begin(self) -> None:
        self.router = new_router()
        self.outboxes = [outbox() for _ in range(3)]
        self.local: Counter[tuple[int, bytes]] = Counter()
        self.elsewhere: set[tuple[int, bytes]] = set()
        self.backpressure_rules = {number: backpressure_rule(number) for number in range(1, 4)}
        """Of this worker's own clients."""
        self.holding: set[tuple[int, int, bytes]] = set()
        """Which clients hold publishers by which patterns: (worker, client, pattern)."""

    @rule(who=st.integers(0, 2), pattern=st.sampled_from(PATTERNS))
    def subscribe(self, who: int, pattern: bytes) -> None:
        assert self.router.gain_interest(shared(pattern)) == (self.occurrences(pattern) == 0)
        self.router.add(pattern, self.outboxes[who])
        self.local[who, pattern] += 1

    @rule(pick=st.integers(0, 100))
    def unsubscribe(self, pick: int) -> None:
        if not self.local:
            return
        who, pattern = sorted(self.local)[pick % len(self.local)]
        self.local = self.local - Counter([(who, pattern)])
        assert self.router.lose_interest(shared(pattern)) == (self.occurrences(pattern) == 0)
        self.router.remove(pattern, self.outboxes[who])

    def occurrences(self, pattern: bytes) -> int:
        """Of all patterns here that match the same keys as this one."""
        return sum(n for (_, held), n in self.local.items() if shared(held) == shared(pattern))

    @rule(worker=st.sampled_from([0, 2, 63]), pattern=st.sampled_from(PATTERNS).map(shared))
    def change_elsewhere(self, worker: int, pattern: bytes) -> None:
        kind = UNSUBSCRIBED if (worker, pattern) in self.elsewhere else SUBSCRIBED
        self.router.apply(remote(worker, pattern, kind=kind))
        self.elsewhere ^= {(worker, pattern)}

    @rule(pick=st.integers(1, 3), pattern=st.sampled_from(PATTERNS))
    def hold_here(self, pick: int, pattern: bytes) -> None:
        held = (OWN, pick, pattern)
        change = self.router.remove if held in self.holding else self.router.add
        change(pattern, self.backpressure_rules[pick])
        self.holding ^= {held}

    @rule(
        worker=st.sampled_from([0, 2, 63]),
        client=st.integers(10, 12),
        pattern=st.sampled_from(PATTERNS),
        kind=st.sampled_from([RULE_ADDED, RULE_REMOVED]),
    )
    def hold_elsewhere(self, worker: int, client: int, pattern: bytes, kind: int) -> None:
        """Also what is known already, and the end of what was never met."""
        self.router.apply(held_by(backpressure_rule(client), worker, pattern, kind=kind))
        held = {(worker, client, pattern)}
        self.holding = self.holding | held if kind == RULE_ADDED else self.holding - held

    @rule(worker=st.sampled_from([0, 2, 63]))
    def reset(self, worker: int) -> None:
        self.router.apply(Record(WORKER_RESET, True, worker, 0))
        self.holding = {held for held in self.holding if held[0] != worker}
        self.elsewhere = {held for held in self.elsewhere if held[0] != worker}

    @invariant()
    def every_route_is_that_of_now(self) -> None:
        for key in KEYS:
            route = self.router.look_up(key)
            workers = {w for w, pattern in self.elsewhere if matches(pattern, key, SLASH)}
            assert route.mask == sum(1 << worker for worker in workers)
            wanting = {w for w, pattern in self.local if matches(pattern, key, SLASH)}
            assert len(route.recipients) == len(wanting)
            assert set(route.recipients) == {self.outboxes[who] for who in wanting}
            assert route.fan_out == len(wanting)
            expected = {held[:2] for held in self.holding if matches(held[2], key, SLASH)}
            rules = all_rules(route)
            assert sorted(it.client for it in rules) == sorted(it[1] for it in expected)
            assert all(it.place == it.client + 100 for it in rules)

    def teardown(self) -> None:
        """Once everything is taken back, nothing is left."""
        for worker, pattern in self.elsewhere:
            self.router.apply(remote(worker, pattern, kind=UNSUBSCRIBED))
        for worker, client, pattern in self.holding:
            if worker == OWN:
                self.router.remove(pattern, self.backpressure_rules[client])
            else:
                record = held_by(backpressure_rule(client), worker, pattern, kind=RULE_REMOVED)
                self.router.apply(record)
        for (who, pattern), count in self.local.items():
            for _ in range(count):
                self.router.remove(pattern, self.outboxes[who])
        statistics = self.router._index.statistics()
        assert (statistics.nodes, statistics.subscriptions) == (1, 0)
        assert not any(self.router._remote_rules.values())


TestRouting = Routing.TestCase
TestRouting.settings = settings(
    max_examples=3 * settings().max_examples // 5, stateful_step_count=30
)


def test_interest_whose_edge_a_compaction_took_is_learned_and_ends_with_its_edge() -> None:
    router = new_router()
    router.apply(remote(0, b"a", edge=False))
    assert router.look_up(b"a").mask == 1
    router.apply(remote(0, b"a", kind=UNSUBSCRIBED, edge=False))
    assert router.look_up(b"a").mask == 1
    router.apply(remote(0, b"a", kind=UNSUBSCRIBED))
    assert router.look_up(b"a").mask == 0


NOT_A_B = 0b101
"""Rules that keep one key from a client."""


def restricting_router() -> Router:
    return Router(OWN, SLASH, Limits(), lambda rules, key: rules != NOT_A_B or key != b"a/b")


def test_nobody_waits_for_a_client_that_may_not_receive_the_message() -> None:
    router = restricting_router()
    own = Credentials(gid=1, uid=2, pid=3)
    profile = AccessProfile(publish=0, subscribe=NOT_A_B, may_block_others=True)
    rule = BackpressureRule(77, 5, 6, own, profile)
    router.apply(Record(RULE_ADDED, True, 3, 77, rule.pack() + b"a/"))
    assert not router.look_up(b"a/b").backpressure_rules
    ((whose, (found,)),) = router.look_up(b"a/c").backpressure_rules.items()
    assert (found.client, found.place, found.account_place) == (77, 5, 6)
    assert whose == ANYBODY


def test_what_a_client_may_not_receive_does_not_lead_to_it() -> None:
    router = restricting_router()
    free, restricted = outbox(), outbox()
    router.set_access_rules(restricted, NOT_A_B)
    for subscriber in (free, restricted):
        for pattern in (b"", b"a/b", b"*/"):
            router.add(pattern, subscriber)
    router.apply(remote(3, b"a/"))
    assert set(router.look_up(b"a/b").recipients) == {free}
    assert set(router.look_up(b"a/c").recipients) == {free, restricted}
    assert router.look_up(b"a/b").mask == router.look_up(b"a/c").mask == 1 << 3


def test_a_client_that_left_leaves_nothing_behind() -> None:
    router = new_router()
    leaver = outbox()
    router.add_client(leaver, cast(SecretRecipient, object()), NOT_A_B)
    router.remove_client(leaver)
    assert not router._access_rules
    assert not router._secret_recipients


def test_the_work_of_a_log_entry_is_reported() -> None:
    """In steps: 50 to look a route up, those of the match, a quarter for each member that is found,
    and 10 for each delivery."""
    router = new_router()
    reported: list[int] = []
    router.watch_entry_steps(reported.append)
    assert reported == [50]
    outboxes = [outbox() for _ in range(8)]
    for member in outboxes:
        router.add_client(member, cast(SecretRecipient, object()), 0)
        router.add(b"a", member)
    assert reported[-1] == 50 + 8 // 4 + 8 * 10
    for member in outboxes:
        router.add(b"a/*", member)
        router.add(b"a*/*", member)
    router.set_shape_steps(1)
    # A match may find the members of two patterns, but each client receives a message once.
    assert reported[-1] == 50 + 1 + 16 // 4 + 8 * 10
    router.look_up(b"a/b")
    # The root and both patterns: more than were announced. It may find all of the members.
    assert reported[-1] == 50 + 3 + 24 // 4 + 8 * 10
    for member in outboxes:
        for pattern in (b"a", b"a/*", b"a*/*"):
            router.remove(pattern, member)
    router.set_shape_steps(0)
    assert reported[-1] < 60
