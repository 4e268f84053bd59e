"""The router: whose messages go where, and never by an outdated route."""

from typing import cast

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.delivery.backpressure import ANYBODY, BackpressureRule
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.broker.worker.router import Router
from sbus.limits import Limits
from sbus.protocol.keys import SLASH
from sbus.shared.subscription_table import RULE_ADDED, SUBSCRIBED, UNSUBSCRIBED, Record
from sbus.unix.credentials import Credentials

OWN = 1
NOT_A_B = 0b101
"""Rules that keep one key from a client."""


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


def remote(worker: int, pattern: bytes, *, kind: int = SUBSCRIBED, edge: bool = True) -> Record:
    return Record(kind, edge, worker, 1, pattern)


def test_interest_whose_edge_a_compaction_took_is_learned_and_ends_with_its_edge() -> None:
    router = new_router()
    router.apply(remote(0, b"a", edge=False))
    assert router.look_up(b"a").mask == 1
    router.apply(remote(0, b"a", kind=UNSUBSCRIBED, edge=False))
    assert router.look_up(b"a").mask == 1
    router.apply(remote(0, b"a", kind=UNSUBSCRIBED))
    assert router.look_up(b"a").mask == 0


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
