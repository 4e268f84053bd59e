"""Subscriptions: rules are held by in pieces, and nothing is lost when the table is full."""

from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import msgspec
import pytest

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.delivery.backpressure import ANYBODY
from sbus.broker.ipc.worker_protocol import SettingsApplied
from sbus.broker.worker import subscriptions as subscriptions_module
from sbus.broker.worker.router import Router
from sbus.errors import Refusal
from sbus.shared.accounts import SUBSCRIPTIONS
from sbus.shared.subscription_table import CLIENT_GONE, Record, encode_record
from tests.unit.broker.worker.sequencer_bus import LIMITS, Bus, Client

WORKERS = 2
SMALL_TABLE = msgspec.structs.replace(LIMITS, table_bytes=4096)


@pytest.fixture
def small_bus() -> Iterator[Bus]:
    opened = Bus(2, 2, SMALL_TABLE, have_published=True)
    yield opened
    opened.close()


def compact(bus: Bus) -> None:
    """Everybody reads, the front compacts, everybody reads again."""
    for finish in (False, True):
        for worker in range(2):
            for _ in range(2):
                bus.walk_on(worker)
        bus.compact(finish=finish)
    for subscriptions in bus.subscriptions:
        subscriptions.retry()


def patiently(bus: Bus, act: Callable[[], bool]) -> bool:
    """Try as a worker does: again after each compaction, which may only now have its records."""
    for _ in range(20):
        if act():
            return True
        compact(bus)
    return False


def fill(bus: Bus, digits: int = 112) -> bytes:
    """Subscribe until the bus refuses; the pattern that was refused. A record has 16 bytes more
    than a pattern."""
    client = bus.clients[0]
    for number in range(1000):
        pattern = b"%0*d" % (digits, number)
        subscribe = partial(bus.subscriptions[0].subscribe, client.session, pattern)
        try:
            assert patiently(bus, subscribe), "held back for ever"
        except Refusal:
            with pytest.raises(Refusal, match="table-full"):
                subscribe()
            return pattern
        client.subscriptions[pattern] += 1
    raise AssertionError("the table took more than it holds")


def take_all_room(bus: Bus) -> None:
    """Until the next compaction, more than users can together. Of a client that nobody knows."""
    while bus.sequencers[1].journal(encode_record(Record(CLIENT_GONE, False, 1, 999))):
        pass


@pytest.mark.parametrize("takes_back", [False, True])
def test_a_user_that_changes_much_leaves_room_to_others(small_bus: Bus, takes_back: bool) -> None:
    """Whether it keeps what it subscribes to or not. It goes on after the next compaction."""
    bus, subscriptions = small_bus, small_bus.subscriptions[0]
    greedy, modest, *_ = bus.clients
    assert greedy.session.account_place != modest.session.account_place
    patterns = (b"%0112d" % number for number in range(1000))
    held_back = None
    while held_back is None:
        pattern = next(patterns)
        if not subscriptions.subscribe(greedy.session, pattern):
            held_back = partial(subscriptions.subscribe, greedy.session, pattern)
        elif takes_back and not subscriptions.unsubscribe(greedy.session, pattern):
            held_back = partial(subscriptions.unsubscribe, greedy.session, pattern)
    assert not held_back()
    for number in range(4):
        assert subscriptions.subscribe(modest.session, b"%0112d" % number)
    assert not held_back()
    compact(bus)
    assert held_back()


def test_a_full_table_still_lets_clients_unsubscribe(small_bus: Bus) -> None:
    bus = small_bus
    fill(bus)
    client = bus.clients[0]
    for pattern in sorted(client.subscriptions):
        unsubscribe = partial(bus.subscriptions[0].unsubscribe, client.session, pattern)
        assert patiently(bus, unsubscribe), "held back for ever"
        del client.subscriptions[pattern]
    assert not bus.routers[0]._interest
    assert patiently(bus, lambda: bus.subscribe(client, b"a"))


def test_a_full_table_hears_of_clients_that_leave(small_bus: Bus) -> None:
    bus = small_bus
    fill(bus)
    bus.leave(bus.clients[0])
    subscriptions = bus.subscriptions[0]
    assert patiently(
        bus, lambda: not subscriptions.make_background_step() and subscriptions.flush_records()
    )


def change_rule(bus: Bus, client: Client, rules: int) -> None:
    """Have rules of other numbers concern a client that blocks."""
    backpressure = client.session.backpressure
    assert backpressure is not None
    profile = AccessProfile(publish=0, subscribe=rules, may_block_others=bool(rules))
    new = backpressure.rule.changed_to(profile)
    if new is not None:
        bus.subscriptions[client.worker].replace_rule(client.session, new)


def test_rules_that_change_and_change_back_leave_a_client_as_it_was(small_bus: Bus) -> None:
    """Though nothing of the first change was done when the second came."""
    bus = small_bus
    client = bus.clients[0]
    bus.block(client)
    subscribe_all(bus, client, [b"k"])
    for rules in (1, 0):
        change_rule(bus, client, rules)
    bus.make_background_steps(0)
    assert held_elsewhere(bus, client) == {b"k"}


# -- one at a time ---------------------------------------------------------------------------------
@pytest.fixture
def bus() -> Iterator[Bus]:
    opened = Bus(WORKERS, 2, have_published=True)
    yield opened
    opened.close()


def subscribe_all(bus: Bus, client: Client, patterns: list[bytes]) -> None:
    for pattern in patterns:
        assert bus.subscribe(client, pattern)


def held_elsewhere(bus: Bus, client: Client) -> set[bytes]:
    """The patterns by which the other worker knows that it holds publishers."""
    bus.walk_on(1 - client.worker)
    return held(bus.routers[1 - client.worker], client)


def held(router: Router, client: Client) -> set[bytes]:
    """The patterns by which a worker knows the rule that a client has now; it has to know of no
    other."""
    known = {
        packed: patterns
        for (number, packed), (_, patterns) in router._remote_rules.get(client.worker, {}).items()
        if number == client.session.client
    }
    backpressure = client.session.backpressure
    assert backpressure is not None or not known
    patterns = set() if backpressure is None else known.pop(backpressure.rule.pack(), set())
    assert not any(known.values()), "an earlier rule still holds"
    return set(patterns)


MANY = [b"%d" % number for number in range(150)]


def test_much_is_done_in_pieces(bus: Bus) -> None:
    """16 records at a time, so that other clients of the worker wait no longer than that."""
    client = bus.clients[0]
    subscribe_all(bus, client, MANY)
    bus.block(client)
    progress = []
    while bus.subscriptions[0].make_background_step():
        progress.append(len(held_elsewhere(bus, client)))
    assert progress[:10] == [16, 32, 48, 64, 80, 96, 112, 128, 144, 150]
    bus.leave(client)
    left = []
    while bus.subscriptions[0].make_background_step():
        left.append(len(client.session.patterns))
    assert left[:10] == [134, 118, 102, 86, 70, 54, 38, 22, 6, 0]
    assert held_elsewhere(bus, client) == set()


def test_who_blocks_holds_by_a_new_pattern_at_once(bus: Bus) -> None:
    client = bus.clients[0]
    subscribe_all(bus, client, MANY)
    bus.block(client)
    subscribe_all(bus, client, [b"new", b"new", MANY[-1]])
    assert held_elsewhere(bus, client) == {b"new", MANY[-1]}
    bus.make_background_steps(0)
    assert held_elsewhere(bus, client) == {b"new", *MANY}
    assert bus.unsubscribe(client, b"new")
    assert b"new" in held_elsewhere(bus, client), "it has it once more"
    assert bus.unsubscribe(client, b"new")
    assert held_elsewhere(bus, client) == set(MANY)


def test_whoever_waits_for_a_client_is_woken_when_it_gives_up_a_pattern(bus: Bus) -> None:
    """Its publishers may not have to wait any more; otherwise they would for the rest of a slice of
    the time for which it may hold them."""
    client = bus.clients[0]
    subscribe_all(bus, client, [b"given up", b"kept"])
    bus.block(client)
    bus.make_background_steps(client.worker)
    backpressure = client.session.backpressure
    assert backpressure is not None
    backpressure.stall()
    elsewhere = bus.stalls[1 - client.worker]
    with bus.memory.lock:
        elsewhere.wait(backpressure.rule.place)
    assert bus.unsubscribe(client, b"given up")
    bus.make_background_steps(client.worker)
    with bus.memory.lock:
        assert elsewhere.release(backpressure.rule.place) == 0


def test_what_is_taken_back_before_its_piece_never_holds(bus: Bus) -> None:
    client = bus.clients[0]
    subscribe_all(bus, client, MANY)
    bus.block(client)
    bus.subscriptions[0].make_background_step()
    late = sorted(client.session.patterns.keys() - client.session.rule_by_pattern.keys())
    for pattern in late[:80]:
        assert bus.unsubscribe(client, pattern)
    subscribe_all(bus, client, late[:3])
    bus.make_background_steps(0)
    assert held_elsewhere(bus, client) == set(client.session.patterns) == set(client.subscriptions)


def test_a_changed_rule_takes_over_without_a_gap(bus: Bus) -> None:
    client = bus.clients[0]
    subscribe_all(bus, client, MANY)
    bus.block(client)
    bus.make_background_steps(0)
    other = bus.routers[1]
    change_rule(bus, client, 0b10)
    bus.subscriptions[0].report_applied(7)
    while bus.link.sent != [SettingsApplied(7)]:
        assert bus.subscriptions[0].make_background_step()
        bus.walk_on(1)
        for pattern in MANY:
            rules = other.look_up(pattern).backpressure_rules
            assert any(rules.values()), "for a moment nobody is held"
    assert held_elsewhere(bus, client) == set(MANY)
    for router in bus.routers:
        ((whose, (rule,)),) = router.look_up(MANY[0]).backpressure_rules.items()
        assert whose == ANYBODY, "an earlier rule still holds"
        assert rule.profile == AccessProfile(publish=0, subscribe=0b10, may_block_others=True)


@pytest.mark.parametrize("pieces", range(4))
def test_a_client_may_leave_in_the_midst_of_beginning_to_hold(bus: Bus, pieces: int) -> None:
    client, other = bus.clients[0], bus.clients[1]
    subscribe_all(bus, client, MANY)
    bus.block(client)
    for _ in range(pieces):
        bus.subscriptions[0].make_background_step()
    bus.leave(client)
    bus.block(other)
    subscribe_all(bus, other, MANY[:2])
    bus.make_background_steps(0)
    assert held_elsewhere(bus, client) == set()
    assert held_elsewhere(bus, other) == set(MANY[:2])
    assert not client.session.patterns
    assert not client.session.rule_by_pattern
    assert client.session.account.use(SUBSCRIPTIONS) == 0


def test_holding_that_finds_the_table_full_goes_on_when_it_is_compacted(small_bus: Bus) -> None:
    """Background steps of others go on meanwhile."""
    bus = small_bus
    client, other = bus.clients[0], bus.clients[1]
    subscribe_all(bus, other, [b"other"])
    with patch.object(subscriptions_module, "_RECORDS_PER_PIECE", 1):
        for number in range(12):
            act = partial(bus.subscribe, client, b"%0112d" % number)
            assert patiently(bus, act)
        take_all_room(bus)
        bus.block(client)
        bus.make_background_steps(0)
        assert len(client.session.rule_by_pattern) < 12, "there was room all the same"
        bus.leave(other)
        bus.make_background_steps(0)
        assert not other.session.patterns

        def holds_by_all() -> bool:
            bus.make_background_steps(0)
            return len(held_elsewhere(bus, client)) == 12

        assert patiently(bus, holds_by_all)


def test_a_changed_rule_takes_over_in_a_full_table(small_bus: Bus) -> None:
    bus = small_bus
    client, other = bus.clients[0], bus.routers[1]
    bus.block(client)
    fill(bus)
    change_rule(bus, client, 0b10)
    bus.subscriptions[0].report_applied(7)

    def is_applied() -> bool:
        while bus.subscriptions[0].make_background_step():
            bus.walk_on(1)
            for pattern in client.subscriptions:
                rules = other.look_up(pattern).backpressure_rules
                assert any(rules.values()), "for a moment nobody is held"
        return bus.link.sent == [SettingsApplied(7)]

    assert patiently(bus, is_applied), "held back for ever"
    assert held_elsewhere(bus, client) == set(client.subscriptions)


def test_longer_rules_leave_a_full_table_room_for_removals(small_bus: Bus) -> None:
    bus = small_bus
    client, subscriptions = bus.clients[0], bus.subscriptions[0]
    bus.block(client)
    fill(bus, digits=4)
    change_rule(bus, client, 1 << 1_000)
    subscriptions.report_applied(7)

    def is_applied() -> bool:
        bus.make_background_steps(0)
        return bus.link.sent == [SettingsApplied(7)]

    assert patiently(bus, is_applied), "held back for ever"
    holding = held_elsewhere(bus, client)
    assert holding == client.session.rule_by_pattern.keys()
    assert 0 < len(holding) < len(client.subscriptions)
    with pytest.raises(Refusal, match="table-full"):
        subscriptions.is_settled(client.session)
    for pattern in sorted(client.subscriptions):
        assert patiently(bus, partial(subscriptions.unsubscribe, client.session, pattern))
    assert not bus.routers[0]._interest
    assert held_elsewhere(bus, client) == set()


def test_what_is_taken_back_while_the_table_has_no_room_never_holds(small_bus: Bus) -> None:
    bus = small_bus
    client = bus.clients[0]
    subscribe_all(bus, client, [b"%0112d" % number for number in range(2)])
    take_all_room(bus)
    bus.block(client)
    bus.make_background_steps(0)
    assert not client.session.rule_by_pattern, "there was room all the same"
    assert bus.unsubscribe(client, b"%0112d" % 0)

    def is_settled() -> bool:
        bus.make_background_steps(0)
        return bus.subscriptions[0].is_settled(client.session)

    assert patiently(bus, is_settled), "held back for ever"
    assert held_elsewhere(bus, client) == set(client.subscriptions)
