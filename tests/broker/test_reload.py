"""Access rules that change while the bus runs: once a reload has returned, the new ones hold.

That holds for clients of all workers. Inside, rules are numbers, and the same number may mean
another rule afterwards; so the rules here have other places each time.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin import Admin, administer
from tests.support.bus import Bus, running_bus
from tests.support.flood import LOST, filling, limit_options, message, send_until_held
from tests.support.inheritance import inherited_connection
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient
from tests.support.secrets import address_of, sync
from tests.support.threads import Task, wait_until
from tests.support.users import STRANGER, become, directory_for_everybody, needs_root

WORKERS = 2
REFUSED = b"CMSG !/error\0not-allowed "
NOT_ADMITTED = b"CMSG !/error\0not-admitted "
NOBODY = 65_000
"""A user without clients: rules about it only move the numbers of others."""


def rule(words: str, **lists: list[Any]) -> str:
    """A rule such as `deny publish`, for these users and keys."""
    effect, verb = words.split()
    more = "".join(f"{name} = {values}\n" for name, values in lists.items())
    return f'[[rules]]\n{effect} = ["{verb}"]\n{more}'


OTHERS = rule("deny publish", users=[NOBODY])


class Ruled:
    """A bus, and the rules that it is told."""

    def __init__(self, bus: Bus, admin: Admin, file: Path) -> None:
        self.bus = bus
        self.admin = admin
        self.file = file

    def apply_rules(self, *rules: str) -> dict[str, Any]:
        self.file.write_text("".join(rules))
        result = self.admin.ask("reload")
        assert result["needs_restart"] == result["unanswered"] == []
        return dict(result)

    def newcomer(self) -> RawClient:
        client = self.bus.connect()
        client.control(b"!/notices/on")
        client.whoami()
        return client


@contextmanager
def ruled_bus(directory: Path, *options: str, workers: int = WORKERS) -> Iterator[Ruled]:
    file = directory / "sbus.toml"
    file.touch()
    with (
        running_bus(directory, "--config", str(file), *options, workers=workers) as bus,
        administer(bus) as admin,
    ):
        yield Ruled(bus, admin, file)


@pytest.fixture
def ruled(tmp_path: Path) -> Iterator[Ruled]:
    with ruled_bus(tmp_path) as opened:
        yield opened


@pytest.fixture
def clients(ruled: Ruled) -> Iterator[list[RawClient]]:
    """Two on each worker, with notices."""
    with clients_on_each(ruled.bus, WORKERS, 2) as places:
        both = [client for place in places for client in place]
        for client in both:
            client.control(b"!/notices/on")
            client.whoami()
        yield both


def may_publish(client: RawClient, key: bytes) -> bool:
    client.pub(key, b"")
    return not any(packet.startswith(REFUSED) for packet in client.sync())


# -- what a rule is about --------------------------------------------------------------------------
def test_publishing_follows_the_new_rules(ruled: Ruled, clients: list[RawClient]) -> None:
    for _ in range(2):
        assert ruled.apply_rules(rule("deny publish", keys=["a/"]))["applied"] == ["rules"]
        for client in clients:
            assert not may_publish(client, b"a/b")
            assert may_publish(client, b"b/b")
        assert ruled.apply_rules(OTHERS, rule("deny publish", keys=["b/"]))["applied"] == ["rules"]
        for client in clients:
            assert may_publish(client, b"a/b")
            assert not may_publish(client, b"b/b")
        assert ruled.apply_rules()["applied"] == ["rules"]
        assert all(may_publish(client, b"b/b") for client in clients)


def test_receiving_follows_the_new_rules(ruled: Ruled, clients: list[RawClient]) -> None:
    """Subscriptions stay, and receive nothing while that is denied; routes in use change too."""
    for client in clients:
        client.sub(b"")
        client.sub(b"a/*")
        client.whoami()

    for rules, arrives in (
        ((), True),
        ((rule("deny subscribe", keys=["a/"]),), False),
        ((OTHERS, rule("deny subscribe", keys=["b/"])), True),
        ((OTHERS, OTHERS, rule("deny subscribe", keys=["a/*"])), False),
        ((), True),
    ):
        ruled.apply_rules(*rules)
        clients[0].pub(b"a/b", b"")
        clients[0].pub(b"end", b"")
        expected = [b"MSG a/b\0", b"MSG end\0"] if arrives else [b"MSG end\0"]
        for client in clients:
            assert [client.receive() for _ in expected] == expected


def test_subscribing_follows_the_new_rules(ruled: Ruled, clients: list[RawClient]) -> None:
    ruled.apply_rules(rule("deny subscribe", keys=["a/"]))
    for client in clients:
        client.sub(b"a/b")
        assert client.sync()[0].startswith(REFUSED)
    ruled.apply_rules(OTHERS)
    for client in clients:
        client.sub(b"a/b")
        client.pub(b"a/b", b"")
        assert b"MSG a/b\0" in client.sync()


def test_a_client_that_may_no_longer_connect_stays_until_it_leaves(
    ruled: Ruled, clients: list[RawClient]
) -> None:
    ruled.apply_rules(OTHERS, rule("deny connect"))
    for client in clients:
        assert may_publish(client, b"a")
    with ruled.bus.connect() as client, suppress(ConnectionResetError):
        assert client.receive().startswith(NOT_ADMITTED)
        assert client.receive() == b""
    ruled.apply_rules(OTHERS)
    with ruled.newcomer() as client:
        assert may_publish(client, b"a")


def test_messages_in_a_backlog_are_still_sent(ruled: Ruled, clients: list[RawClient]) -> None:
    slow, publisher = clients[0], clients[1]
    slow.sub(b"a")
    slow.whoami()
    packets = [message(b"%d" % number, 100, b"a") for number in range(1_000)]
    for packet in packets:
        publisher.send(packet)
    publisher.sync()
    ruled.apply_rules(rule("deny subscribe", keys=["a"]))
    publisher.pub(b"a", b"denied")
    publisher.sync()
    assert slow.sync() == packets


def test_clients_that_connect_during_reloads_get_the_last_rules(ruled: Ruled) -> None:
    """None falls between the old rules and the new ones."""
    odd = (rule("deny publish", keys=["a"]),)
    even = (OTHERS, rule("deny publish", keys=["b"]))
    newcomers: list[RawClient] = []
    stop = threading.Event()

    def keep_coming() -> None:
        while not stop.is_set() and len(newcomers) < 300:
            newcomers.append(ruled.bus.connect())

    with ExitStack() as stack:
        tasks = [Task(keep_coming) for _ in range(2)]
        try:
            for number in range(21):
                ruled.apply_rules(*(even if number % 2 else odd))
        finally:
            stop.set()
            for task in tasks:
                task.join()
        for client in newcomers:
            stack.enter_context(client)
        assert len(newcomers) > 20
        for client in newcomers:
            client.control(b"!/notices/on")
            assert not may_publish(client, b"a")
            assert may_publish(client, b"b")


def test_many_rules_are_transferred(ruled: Ruled, clients: list[RawClient]) -> None:
    """More than fit in a packet between the processes."""
    keys = [f"{'x' * 500}/{number}" for number in range(1_000)]
    rules = [rule("deny publish", keys=[key]) for key in keys]
    ruled.apply_rules(*rules)
    for client in clients:
        assert not may_publish(client, keys[0].encode())
        assert not may_publish(client, keys[-1].encode())
        assert may_publish(client, b"x")


# -- holding others back ---------------------------------------------------------------------------
MAY_BLOCK = rule("allow block", users=[os.geteuid()])


@needs_root
@pytest.mark.parametrize("workers", [1, 2])
def test_holding_publishers_back_follows_the_new_rules(workers: int) -> None:
    """A stranger publishes for a client that blocks: it is held while the rules allow that."""
    limits = limit_options(user_held_seconds_max=60)
    with (
        directory_for_everybody() as directory,
        ruled_bus(directory, "-go", *limits, workers=workers) as ruled,
        clients_on_each(ruled.bus, workers) as places,
        inherited_connection(address_of(ruled.bus), become()) as stranger,
    ):
        slow = places[0][0]
        slow.control(b"!/notices/on")
        slow.control(b"blocking/soft/block")
        for number in range(200):  # in more than one piece
            slow.sub(b"%d" % number)
        slow.sub(b"k")
        slow.whoami()
        for packet in (*filling(), *FOREIGN):
            stranger.send(packet)
        assert sync(stranger) == [], "it is not held without a rule"
        for _ in range(2):
            ruled.apply_rules(OTHERS, MAY_BLOCK)
            stranger.send(FOREIGN[0])
            wait_until(lambda: ruled.admin.ask("stats")["stalled_clients"] == 1, "it stalls")
            for packet in FOREIGN:
                stranger.send(packet)
            wait_until(lambda: waits_for(ruled, STRANGER) == "stall", "the stranger is held")
            answer = Task(lambda: sync(stranger))
            ruled.apply_rules(OTHERS)
            answer.join()
            assert waits_for(ruled, STRANGER) == ""
        received = slow.sync()
        assert any(packet.startswith(LOST) for packet in received)
        assert received[0] == filling()[0]


@pytest.mark.parametrize("place", [1, -1])
def test_a_held_publisher_that_may_no_longer_publish_uses_no_held_time(
    ruled: Ruled, clients: list[RawClient], place: int
) -> None:
    slow, publisher = clients[0], clients[place]
    slow.control(b"blocking/soft/block")
    slow.sub(b"k")
    slow.whoami()
    witnesses = [client for client in clients if client not in (slow, publisher)]

    def held_seconds() -> float:
        users = ruled.admin.ask("users")["users"]
        return next(float(user["held_seconds"]) for user in users if user["uid"] == os.geteuid())

    def is_held_for_the_client() -> bool:
        """Not for its worker, as a publisher may be before."""
        send_until_held(publisher, repeat(message(b"", 10_000)), witnesses)
        return held_seconds() > 0

    wait_until(is_held_for_the_client, "it waits for the client")
    assert held_seconds() < held_seconds()
    ruled.apply_rules(rule("deny publish", keys=["k"]))
    assert any(packet.startswith(REFUSED) for packet in publisher.sync())
    assert held_seconds() == held_seconds()


FOREIGN = [message(b"foreign %d" % number, 100) for number in range(5)]


def waits_for(ruled: Ruled, uid: int) -> str:
    """Why the only client of a user is not read."""
    (client,) = ruled.admin.ask("clients", uid=uid)["clients"]
    return str(client["activity"]["waits_for"])
