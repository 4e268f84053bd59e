"""Whole workers that are told of other settings: what does not surely show from outside."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from sbus.broker.config.access_policy import AccessRule, Permission, encode_rule_set
from sbus.broker.config.settings import BusSettings, SettingsUpdate
from sbus.broker.delivery import fan_out_times
from sbus.broker.ipc.client_record import ClientRecord
from sbus.broker.ipc.worker_protocol import AdoptClient, HandOverClient, PrepareClient
from sbus.limits import Limits
from tests.fuzz.one_process_bus import CREDENTIALS, WORKERS, OneProcessBus, Peer, one_process_bus

LIMITS = Limits(log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024)
REFUSED = b"CMSG !/error\0not-allowed "


def rule(verb: Permission, *patterns: bytes, allows: bool = False) -> AccessRule:
    return AccessRule(allows=allows, permissions=frozenset({verb}), patterns=patterns)


def settings(*rules: AccessRule, **limits: Any) -> BusSettings:
    return BusSettings(
        workers=WORKERS, limits=msgspec.structs.replace(LIMITS, **limits), rules=rules
    )


@contextmanager
def bus() -> Iterator[OneProcessBus]:
    with one_process_bus("slash", LIMITS) as opened:
        yield opened


def apply_settings(bus: OneProcessBus, what: SettingsUpdate) -> None:
    for worker in range(WORKERS):
        bus.reconfigure(worker, what)
    bus.settle()
    assert sorted(bus.reconfigured) == list(range(WORKERS))
    bus.reconfigured.clear()


def test_limits_that_only_show_inside() -> None:
    limits = {
        "quantum_units": 17,
        "drain_packets_max": 18,
        "route_cache_bytes_max": 20_000,
        "rule_cache_bytes_max": 30_000,
        "fan_out_us_max": 19,
    }
    with bus() as opened:
        apply_settings(opened, SettingsUpdate(settings(**limits)))
        for worker in opened.workers:
            applied = worker.context.settings.limits
            assert applied.quantum_units == 17
            assert applied.drain_packets_max == 18
            assert worker.router.cache._half_bytes_max == 10_000
            assert worker.context.rules._cache._half_bytes_max == 15_000
            assert worker.context.fan_out_times.words[fan_out_times._NS_PER_MESSAGE] == 19_000


def test_a_client_on_its_way_when_rules_change_goes_by_the_new_ones() -> None:
    """Its number is of the old rules; behind it comes the order, which has its new one."""
    new = settings(rule(Permission.PUBLISH, b"old"), rule(Permission.PUBLISH, b"new"))
    with bus() as opened:
        before, after = opened.connect(0, rules=0b01), None
        opened.reconfigure(0, SettingsUpdate(new, {before.number: encode_rule_set(0b10)}))
        after = opened.connect(0, rules=0b01)
        opened.settle()
        for peer in (before, after):
            peer.send(b"CMSG !/notices/on")
            for key in (b"old", b"new"):
                peer.send(b"MSG " + key + b"\0")
        opened.settle()
        assert [packet[:25] for packet in before.read()] == [REFUSED]
        assert [packet[:25] for packet in after.read()] == [REFUSED]
        before_profile, after_profile = (
            opened.workers[0].sessions._by_client[peer.number].profile for peer in (before, after)
        )
        assert (before_profile.publish, after_profile.publish) == (0b10, 0b01)
        close(before, after)
        opened.settle()


def test_clients_that_a_successor_is_given_when_rules_change_go_by_the_new_ones() -> None:
    """The predecessor had never served one of them. Both come with their old sets of rules."""
    denied = (Permission.PUBLISH, Permission.SUBSCRIBE)
    new = settings(*(rule(verb, b"k") for verb in denied), rule(Permission.BLOCK, allows=True))
    with bus() as opened:
        served, unserved, publisher = opened.connect(0), opened.connect(0), opened.connect(1)
        for packet in (b"CMSG !/notices/on", b"SUB k", b"SUB k2", b"CMSG blocking/soft/block"):
            served.send(packet)
        opened.settle()
        slot = opened.workers[0].sessions[unserved.number].slot
        slot.save(0, slot.settings())
        peers = (served, unserved)
        rules = {peer.number: encode_rule_set(0b111) for peer in peers}
        opened.succeed(0, opened.reap(0), SettingsUpdate(new, rules))
        opened.settle()
        for peer in peers:
            peer.send(b"CMSG !/notices/on")
            peer.send(b"MSG k\0")
        for key in (b"k", b"k2"):
            publisher.send(b"MSG %b\0" % key)
        opened.settle()
        assert [packet[:25] for packet in unserved.read()] == [REFUSED]
        assert sorted(packet[:25] for packet in served.read()) == [REFUSED, b"MSG k2\0"]
        for peer in peers:
            profile = opened.workers[0].sessions[peer.number].profile
            assert (profile.publish, profile.subscribe, profile.may_block_others) == (1, 2, True)
        backpressure = opened.workers[0].sessions[served.number].backpressure
        assert backpressure is not None
        assert backpressure.rule.profile.may_block_others
        close(*peers, publisher)
        opened.settle()


def test_a_client_that_is_prepared_for_when_rules_change_arrives_under_the_new_ones() -> None:
    new = settings(rule(Permission.PUBLISH, b"k"), rule(Permission.SUBSCRIBE, b"k"))
    with bus() as opened:
        peer, publisher = opened.connect(0), opened.connect(0)
        for packet in (b"CMSG !/notices/on", b"SUB k", b"SUB k2"):
            peer.send(packet)
        opened.settle()
        session, number = opened.workers[0].sessions[peer.number], peer.number
        place, unruled = session.account_place, encode_rule_set(0)
        adoption = AdoptClient(number, CREDENTIALS, place, unruled, number)
        record = ClientRecord(revision=session.revision, patterns=session.patterns)
        opened.tell(1, PrepareClient(adoption, record), session.sock.fileno())
        opened.settle()
        apply_settings(opened, SettingsUpdate(new, {number: encode_rule_set(0b11)}))
        opened.tell(0, HandOverClient(number, 1, session.revision))
        opened.settle()
        assert number in {session.client for session in opened.workers[1].sessions}
        peer.send(b"MSG k\0")
        for key in (b"k", b"k2"):
            publisher.send(b"MSG %b\0" % key)
        opened.settle()
        assert sorted(packet[:25] for packet in peer.read()) == [REFUSED, b"MSG k2\0"]
        close(peer, publisher)
        opened.settle()


def close(*peers: Peer) -> None:
    for peer in peers:
        peer.close()


def test_a_successor_replaces_the_backpressure_rules_that_are_left() -> None:
    """Its predecessor had replaced some when it died."""
    patterns = [b"k/%d" % number for number in range(200)]
    with bus() as opened:
        slow, publisher = opened.connect(0), opened.connect(1)
        for packet in (*(b"SUB " + pattern for pattern in patterns), b"CMSG blocking/soft/block"):
            slow.send(packet)
        opened.settle()
        new, concerning = settings(rule(Permission.BLOCK, allows=True)), encode_rule_set(0b1)
        update = SettingsUpdate(new, {slow.number: concerning})
        opened.reconfigure(0, update)
        replaced = opened.workers[0].sessions[slow.number].rule_by_pattern
        while {it.version for it in replaced.values()} != {0, 1}:
            opened.stepped[0].tick()
        opened.succeed(0, opened.reap(0), update)
        opened.settle()
        publisher.send(b"MSG other\0")  # its worker reads the table
        opened.settle()
        for pattern in patterns:
            ((found,),) = opened.workers[1].router.look_up(pattern).backpressure_rules.values()
            assert found.profile.may_block_others
        close(slow, publisher)
        opened.settle()
