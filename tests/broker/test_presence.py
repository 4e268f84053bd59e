"""Clients take names, and others are told of it (docs/protocol.md, "Presence")."""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.bus import Bus, running_bus
from tests.support.presence import join, leave, members
from tests.support.processes import clients_on_each, several_clients
from tests.support.raw_client import RawClient
from tests.support.threads import run_together

UID, GID, PID = os.geteuid(), os.getegid(), os.getpid()
EVERYBODY = b"!/presence/*/*"


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


@pytest.fixture
def two(bus: Bus) -> Iterator[tuple[RawClient, RawClient]]:
    """One client of each worker."""
    with clients_on_each(bus, 2) as ((one,), (another,)):
        yield one, another


def number_of(client: RawClient) -> int:
    """The number of this client's connection, for which it needs a name."""
    join(client, b"counted")
    (own,) = (it for it in members(client, b"%d/counted" % UID))
    leave(client)
    return own.client


def joins(name: bytes, client: int) -> bytes:
    return b"MSG !/presence/%d/%b\0join %d %d %d" % (UID, name, client, GID, PID)


def leaves(name: bytes, client: int, reason: bytes) -> bytes:
    return b"MSG !/presence/%d/%b\0leave %d %d %d %b" % (UID, name, client, GID, PID, reason)


def test_watchers_of_all_workers_are_told_who_comes_and_goes(bus: Bus) -> None:
    with clients_on_each(bus, 2, 2) as ((one, member), (another, _)):
        number = number_of(member)
        for watcher in (one, another):
            watcher.sub(EVERYBODY)
            watcher.whoami()
        member.send(b"CMSG !/join\0worker-1")
        assert member.receive() == b"CMSG !/join\0worker-1"
        for watcher in (one, another):
            assert watcher.receive() == joins(b"worker-1", number)
        member.send(b"CMSG !/leave")
        assert member.receive() == b"CMSG !/leave\0worker-1"
        for watcher in (one, another):
            assert watcher.sync() == [leaves(b"worker-1", number, b"gave-up")]
        assert leave(member) == b""


def test_a_client_that_goes_leaves_its_will_behind(bus: Bus) -> None:
    with clients_on_each(bus, 2, 2) as ((watcher, goes), (another, stays)):
        number = number_of(goes)
        for it in (watcher, another):
            it.sub(EVERYBODY)
            it.sub(b"wills/*")
            it.whoami()
        assert join(goes, b"mortal", b"wills/mortal\0I was\0here") == ""
        assert join(stays, b"careful", b"wills/careful\0never") == ""
        goes.pub(b"wills/alive", b"")
        goes.close()
        assert leave(stays) == b"careful"
        expected = [
            b"MSG wills/alive\0",
            b"MSG wills/mortal\0I was\0here",
            leaves(b"mortal", number, b"left"),
        ]
        for it in (watcher, another):
            received = []
            while expected[-1] not in received:
                received.append(it.receive())
            assert [packet for packet in received + it.sync() if packet in expected] == expected
            assert b"MSG wills/careful\0never" not in received


def test_a_client_that_is_disconnected_leaves_for_that_reason(bus: Bus) -> None:
    with several_clients(bus, 2) as (watcher, rude):
        number = number_of(rude)
        join(rude, b"rude")
        watcher.sub(EVERYBODY)
        watcher.whoami()
        rude.send(b"HELLO")
        assert watcher.receive() == leaves(b"rude", number, b"unknown-word")


def test_a_name_is_unique_among_those_of_a_user(two: tuple[RawClient, RawClient]) -> None:
    one, another = two
    assert join(one, b"only") == ""
    assert join(another, b"only") == "name-taken"
    assert join(one, b"only") == "", "the same request again"
    assert join(one, b"other") == "has-name"
    assert leave(one) == b"only"
    assert join(another, b"only") == ""
    assert leave(another) == b"only"


def test_one_of_two_that_take_a_name_at_once_gets_it(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((one,), (another,)):
        outcomes: list[str] = []

        def take(client: RawClient) -> None:
            outcomes.append(join(client, b"coveted"))

        for _ in range(100):
            outcomes.clear()
            run_together(*(partial(take, client) for client in (one, another)))
            assert sorted(outcomes) == ["", "name-taken"]
            assert {leave(one), leave(another)} == {b"coveted", b""}


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (b"", b"\0bad-name "),
        (b"a b", b"a b\0bad-name "),
        (b"a/b", b"a/b\0bad-name "),
        (b"x" * 65, b"x" * 64 + b"\0bad-name "),
        (b"n\0key", b"n\0bad-will "),
        (b"n\0key\0" + bytes(4_093), b"n\0bad-will "),
        (b"n\0!/presence/0/n\0join 1 1 1", b"n\0reserved "),
        (b"n\0a/!/b\0", b"n\0reserved "),
    ],
)
def test_a_join_that_is_refused_says_why(bus: Bus, request_: bytes, reply: bytes) -> None:
    with bus.connect() as client:
        client.control(b"!/notices/on")
        client.send(b"CMSG !/join\0" + request_)
        assert client.receive().startswith(b"CMSG !/join\0" + reply)
        assert client.sync() == []
        assert members(client, b"*/*") == []


def test_the_longest_name_and_will_are_accepted(bus: Bus) -> None:
    with several_clients(bus, 2) as (client, watcher):
        watcher.sub(b"")
        watcher.whoami()
        will = b"k" * 2_000 + b"\0" + b"p" * 2_095
        assert join(client, b"x" * 64, will) == ""
        client.close()
        assert watcher.receive() == b"MSG " + will


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (b"*/*", [b"a", b"a-1", b"a-2", b"b"]),
        (b"%d/*" % UID, [b"a", b"a-1", b"a-2", b"b"]),
        (b"*/a-*", [b"a-1", b"a-2"]),
        (b"%d/a" % UID, [b"a"]),
        (b"*/a", [b"a"]),
        (b"%d/a*" % (UID + 1), []),
        (b"*/c*", []),
    ],
)
def test_members_are_listed_by_patterns(bus: Bus, pattern: bytes, found: list[bytes]) -> None:
    with clients_on_each(bus, 2, 2) as (here, there), bus.connect() as asks:
        named = dict(zip((b"b", b"a-1", b"a-2", b"a"), (*here, *there), strict=True))
        for name, client in named.items():
            join(client, name)
        assert [member.name for member in members(asks, pattern)] == found


@pytest.mark.parametrize(
    "pattern", [b"", b"*", b"*/", b"01/a", b"1/a*b", b"a/b", b"1/a/b", b"*/**"]
)
def test_other_patterns_of_names_are_refused(bus: Bus, pattern: bytes) -> None:
    with bus.connect() as client:
        client.control(b"!/notices/on")
        client.send(b"CMSG !/members\0" + pattern)
        assert client.receive().startswith(b"CMSG !/members\0refused bad-name ")
        client.sub(b"!/presence/" + pattern)
        assert client.receive().startswith(b"CMSG !/error\0bad-name ")


def test_a_list_of_members_has_a_place_in_the_order(two: tuple[RawClient, RawClient]) -> None:
    """Who is in it had joined, and what is told behind it comes later."""
    asks, joiner = two
    asks.sub(EVERYBODY)
    asks.whoami()
    for number in range(20):
        name = b"n%d" % number
        join(joiner, name)
        asks.send(b"CMSG !/members\0*/n*")
        assert b"/%b\0join" % name in asks.receive()
        assert b" %b " % name in asks.receive()
        leave(joiner)
        assert b"\0leave" in asks.receive()
    assert members(asks, b"*/*") == []


def test_nobody_but_the_bus_tells_of_names(two: tuple[RawClient, RawClient]) -> None:
    watcher, liar = two
    watcher.sub(EVERYBODY)
    watcher.whoami()
    liar.control(b"!/notices/on")
    join(liar, b"liar")
    told = watcher.receive()
    assert b"/liar\0join " in told
    for lie in (told, told.replace(b"join", b"leave") + b" left", told.replace(b"liar", b"root")):
        liar.send(lie)
        assert liar.receive().startswith(b"CMSG !/error\0reserved ")
    liar.send(told.replace(b"\0", b"\0\0", 1))
    assert liar.receive().startswith(b"CMSG !/error\0reserved ")
    assert watcher.sync() == []
    leave(liar)


def test_patterns_for_everything_do_not_match_what_tells_of_names(bus: Bus) -> None:
    with several_clients(bus, 2) as (curious, member):
        for pattern in (b"", b"*/", b"*/*/*/*"):
            curious.sub(pattern)
        curious.whoami()
        join(member, b"quiet")
        leave(member)
        assert curious.sync() == []


def test_rules_say_who_sees_whom_and_what_a_will_may_say(tmp_path: Path) -> None:
    rules = """
        [[rules]]
        deny = ["subscribe"]
        keys = ["!/presence/*/hidden*"]
        [[rules]]
        deny = ["publish"]
        keys = ["forbidden/"]
    """
    configuration = tmp_path / "sbus.toml"
    configuration.write_text(rules)
    with (
        running_bus(tmp_path, "--config", str(configuration)) as bus,
        clients_on_each(bus, 2, 2) as ((watcher, hidden), (_, seen)),
    ):
        watcher.control(b"!/notices/on")
        watcher.sub(b"!/presence/*/hidden-1")
        assert watcher.receive().startswith(b"CMSG !/error\0not-allowed ")
        watcher.sub(EVERYBODY)
        watcher.whoami()
        assert join(hidden, b"x", b"forbidden/key\0") == "not-allowed"
        assert join(hidden, b"hidden-1") == ""
        assert join(seen, b"seen") == ""
        assert b"/seen\0join" in watcher.receive()
        assert [it.name for it in members(watcher, b"*/*")] == [b"seen"]
        leave(hidden)
        assert watcher.sync() == []


def test_a_name_counts_as_a_subscription(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, "--limit", "user_subscriptions_max=4") as bus,
        several_clients(bus, 5) as clients,
    ):
        outcomes = [join(client, b"n%d" % number) for number, client in enumerate(clients)]
        assert outcomes[0] == ""
        assert outcomes[-1] == "too-many-patterns"
        for client in clients:
            leave(client)
        assert join(clients[-1], b"later") == ""


def test_names_are_taken_and_given_up_at_the_pace_of_their_user(tmp_path: Path) -> None:
    """What is told of names counts as messages, and waits as those do."""
    with (
        running_bus(tmp_path, "--limit", "user_messages_per_second_max=10") as bus,
        several_clients(bus, 2) as (watcher, fickle),
    ):
        watcher.sub(EVERYBODY)
        watcher.whoami()
        began_at = time.monotonic()
        for _ in range(10):
            fickle.send(b"CMSG !/join\0fickle")
            fickle.send(b"CMSG !/leave")
        for _ in range(5):
            assert b"/fickle\0" in watcher.receive()
        told = 5 + len(watcher.sync())
        seconds = time.monotonic() - began_at
        assert told <= 3 + 10 * seconds
