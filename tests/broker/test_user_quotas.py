"""Quotas of one user's connections and subscriptions, over all its clients on all workers.

Of each quota a client takes at most as much as it leaves to the user's other clients, and of what
is the whole bus's a user takes at most as much as it leaves to others: what `share` computes. A
client that reaches a quota is told so, and the administrator once; no other client notices.
"""

import re
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from tests.support.bus import Bus
from tests.support.inheritance import Inherited, inherited_connection
from tests.support.processes import descriptors_at_rest, several_clients, wait_for_descriptors
from tests.support.quotas import assert_reported_once, bus_with, share, shares
from tests.support.raw_client import WHOAMI, RawClient
from tests.support.secrets import address_of, sync
from tests.support.threads import wait_until
from tests.support.users import STRANGER, as_user, become, directory_for_everybody, needs_root

WORKERS = 4
TOO_MANY_CONNECTIONS = b"CMSG !/error\0too-many-connections "
TOO_MANY_PATTERNS = b"CMSG !/error\0too-many-patterns "


def test_a_client_takes_at_most_as_much_as_it_leaves_to_others() -> None:
    """The rule in numbers: half, then half of what is left, to the last."""
    assert shares(8, 5) == [4, 2, 1, 0, 0]
    assert shares(9, 5) == [4, 2, 1, 1, 0]
    assert shares(1, 2) == shares(0, 2) == [0, 0]
    assert share(8, used=4, own=2) == 1


def is_served(bus: Bus) -> bool:
    with bus.connect() as client:
        return client.is_served("too-many-connections")


def assert_told_why(address: str) -> None:
    """A newcomer that listens is told why it is not let in, and sees an orderly end."""
    with RawClient(address) as client:
        assert client.receive().startswith(TOO_MANY_CONNECTIONS)
        assert client.receive() == b""


def all_served(bus: Bus, number: int) -> bool:
    """Whether so many newcomers are let in, at the same time."""
    with ExitStack() as stack:
        clients = [stack.enter_context(bus.connect()) for _ in range(number)]
        for client in clients:
            client.control(WHOAMI)
        return all(client.receive().startswith(b"CMSG " + WHOAMI) for client in clients)


# -- connections -----------------------------------------------------------------------------------
def test_one_connection_too_many_is_refused_with_a_reason(tmp_path: Path) -> None:
    most = 6
    with bus_with(tmp_path, WORKERS, user_connections_max=most) as bus:
        with several_clients(bus, most) as clients:
            for _ in range(10):
                assert_told_why(bus.address)
                assert not is_served(bus)
            for client in clients:
                client.whoami()
            clients[0].close()
            wait_until(lambda: is_served(bus), "there is room for another one")
            for client in clients[1:]:
                client.whoami()
        assert_reported_once(bus)


@needs_root
def test_users_do_not_share_the_connection_quota() -> None:
    with (
        directory_for_everybody() as directory,
        bus_with(directory, 2, user_connections_max=3) as bus,
        several_clients(bus, 3),
    ):
        assert_told_why(bus.address)
        assert as_user(lambda: all_served(bus, 3))
        assert_told_why(bus.address)


def test_a_flood_of_connections_leaves_nothing(tmp_path: Path) -> None:
    """Accepted clients are served all the time, and all their places are free again afterwards."""
    most = 2
    with bus_with(tmp_path, 2, user_connections_max=most) as bus:
        before = descriptors_at_rest(bus)
        for _ in range(3):
            with several_clients(bus, most) as clients:
                for _ in range(50):
                    assert not is_served(bus)
                    clients[0].whoami()
            wait_for_descriptors(bus, before)
        assert all_served(bus, most)


# -- subscriptions ---------------------------------------------------------------------------------
TRIES = 10


def subscribe_until_refused(client: RawClient | Inherited, name: int, tries: int = TRIES) -> int:
    """How many patterns of the same size a client gets; the next ones are refused, and it stays."""
    client.send(b"CMSG !/notices/on")
    refused = []
    for number in range(tries):
        client.send(b"SUB " + pattern(name, number))
        answer = client.sync() if isinstance(client, RawClient) else sync(client)
        assert all(packet.startswith(TOO_MANY_PATTERNS) for packet in answer)
        refused.append(len(answer))
    taken = refused.index(1) if 1 in refused else tries
    assert refused == [0] * taken + [1] * (tries - taken)
    return taken


def pattern(name: int, number: int) -> bytes:
    return b"%03d-%03d" % (name, number)


UNIT_BYTES = len(pattern(0, 0)) + 64
"""What each of these patterns, of one segment, counts for."""
SUBSCRIPTION_QUOTAS = [
    {"user_subscriptions_max": 8},
    {"user_subscription_bytes_max": 8 * UNIT_BYTES},
    {"user_subscription_bytes_max": 9 * UNIT_BYTES - 1},
]


@pytest.mark.parametrize("limits", SUBSCRIPTION_QUOTAS, ids=["number", "bytes", "odd bytes"])
def test_each_client_takes_at_most_as_many_patterns_as_it_leaves(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    """What was refused is not subscribed to, and the rest is."""
    with (
        bus_with(tmp_path, WORKERS, **limits) as bus,
        several_clients(bus, 6) as (publisher, *clients),
    ):
        taken = [subscribe_until_refused(client, name) for name, client in enumerate(clients)]
        assert taken == shares(8, 5)
        for name, number in product(range(len(clients)), range(TRIES)):
            publisher.pub(pattern(name, number), b"")
        publisher.whoami()
        for name, client in enumerate(clients):
            accepted = [pattern(name, number) for number in range(taken[name])]
            assert client.sync() == [b"MSG " + key + b"\0" for key in accepted]
        assert_reported_once(bus)


@pytest.mark.parametrize("limits", SUBSCRIPTION_QUOTAS[:2], ids=["number", "bytes"])
def test_returned_patterns_can_be_taken_by_any_client(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    with bus_with(tmp_path, WORKERS, **limits) as bus, several_clients(bus, 3) as clients:
        first, second, third = clients
        assert subscribe_until_refused(first, 0) == 4
        assert subscribe_until_refused(second, 1) == 2
        for number in range(3):
            first.unsub(pattern(0, number))
        first.sync()
        assert subscribe_until_refused(third, 2) == share(8, used=3, own=0) == 2
        second.close()
        wait_until(
            lambda: subscribe_until_refused(third, 3, tries=1) == 1, "what the second one had"
        )
        assert subscribe_until_refused(third, 4) == share(8, used=4, own=3) == 0


def test_every_occurrence_of_a_pattern_counts(tmp_path: Path) -> None:
    with bus_with(tmp_path, 2, user_subscriptions_max=8) as bus, bus.connect() as client:
        client.control(b"!/notices/on")
        for _ in range(4):
            client.sub(b"k")
            assert client.sync() == []
        client.sub(b"k")
        (refusal,) = client.sync()
        assert refusal.startswith(TOO_MANY_PATTERNS)
        client.unsub(b"k")
        client.unsub(b"unknown")
        client.sub(b"k")
        assert client.sync() == []
        client.pub(b"k", b"")
        assert client.sync() == [b"MSG k\0"]


def test_a_user_takes_at_most_as_many_patterns_as_it_leaves_to_others(tmp_path: Path) -> None:
    """Over all of its clients: the second one finds nothing left."""
    limits = {"bus_subscription_bytes_max": 8 * UNIT_BYTES}
    with bus_with(tmp_path, 2, **limits) as bus, several_clients(bus, 2) as (first, second):
        assert subscribe_until_refused(first, 0) == 4
        assert subscribe_until_refused(second, 1) == 0


@needs_root
@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"user_subscriptions_max": 8}, [4, 2]),
        ({"user_subscription_bytes_max": 8 * UNIT_BYTES}, [4, 2]),
        ({"bus_subscription_bytes_max": 8 * UNIT_BYTES}, [2, 0]),
    ],
    ids=["number", "bytes", "bytes of the bus"],
)
def test_another_user_gets_its_share(limits: dict[str, int], left: list[int]) -> None:
    with (
        directory_for_everybody() as directory,
        bus_with(directory, 2, **limits) as bus,
        several_clients(bus, 1) as (own,),
        inherited_connection(address_of(bus), become()) as stranger,
        inherited_connection(address_of(bus), become()) as second_stranger,
    ):
        assert subscribe_until_refused(own, 0) == 4
        others = enumerate([stranger, second_stranger], 1)
        assert [subscribe_until_refused(other, name) for name, other in others] == left


# -- reports ---------------------------------------------------------------------------------------
def test_a_quota_that_is_hit_on_all_workers_is_reported_once_per_user(tmp_path: Path) -> None:
    with (
        bus_with(tmp_path, WORKERS, user_subscriptions_max=0) as bus,
        several_clients(bus, 12) as clients,
    ):
        for name, client in enumerate(clients):
            assert subscribe_until_refused(client, name, tries=3) == 0
        assert_reported_once(bus)


def test_a_report_is_repeated_after_the_interval(tmp_path: Path) -> None:
    interval_seconds = 0.5
    limits = {"user_connections_max": 1, "log_interval_seconds": interval_seconds}
    with bus_with(tmp_path, 2, **limits) as bus, several_clients(bus, 1):
        began_at = time.monotonic()

        def is_reported_again() -> bool:
            with bus.connect() as refused:  # without a word, once telling has cost enough
                refused.receive_until_closed()
            return len(bus.stderr_text().splitlines()) > 1

        wait_until(is_reported_again, "a second report")
        assert time.monotonic() - began_at > 0.9 * interval_seconds


@needs_root
def test_the_report_names_another_user() -> None:
    with (
        directory_for_everybody() as directory,
        bus_with(directory, 2, user_connections_max=1) as bus,
    ):

        def comes_twice() -> bool:
            with several_clients(bus, 1):
                return not is_served(bus)

        assert as_user(comes_twice)
        wait_until(lambda: bool(bus.stderr_text()), "a report")
        (line,) = bus.stderr_text().splitlines()
        assert re.search(rf"\buid\W{STRANGER}\b", line), line
