"""Quotas of connections and subscriptions: users do not share them, and each that is reached is
reported once.

Among the clients of one user: `tests/protocol/12-refusals.t`.
"""

import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.bus import Bus
from tests.support.flood import LOST, filling, give_turns, message
from tests.support.inheritance import Inherited, inherited_connection
from tests.support.processes import several_clients
from tests.support.quotas import assert_reported_once, bus_with
from tests.support.raw_client import WHOAMI, RawClient
from tests.support.secrets import address_of, sync
from tests.support.threads import wait_until
from tests.support.users import STRANGER, as_user, become, directory_for_everybody, needs_root

WORKERS = 4
TOO_MANY_CONNECTIONS = b"CMSG !/error\0too-many-connections "
TOO_MANY_PATTERNS = b"CMSG !/error\0too-many-patterns "


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


# -- backlogs --------------------------------------------------------------------------------------
@needs_root
@pytest.mark.parametrize(
    ("quota", "expected"), [("user_backlog_bytes_max", [4, 4]), ("bus_backlog_bytes_max", [4, 2])]
)
def test_users_do_not_share_the_backlog_quota(quota: str, expected: list[int]) -> None:
    size, many = 1_000, 12
    with (
        directory_for_everybody() as directory,
        bus_with(directory, 2, **{quota: 8 * (size + 64)}) as bus,
        several_clients(bus, 4) as (publisher, *witnesses),
        inherited_connection(address_of(bus)) as own,
        inherited_connection(address_of(bus), become()) as stranger,
    ):
        kept = []
        for key, client in ((b"own", own), (b"stranger", stranger)):
            client.send(b"CMSG !/notices/on")
            client.send(b"SUB " + key)
            assert sync(client) == []
            packets = filling(key)
            packets += [message(b"%d" % number, size, key) for number in range(many)]
            for packet in packets:
                publisher.send(packet)
            publisher.whoami()
            give_turns(witnesses)
        for key, client in ((b"own", own), (b"stranger", stranger)):
            *received, lost = sync(client)
            kept.append(len(received) - len(filling(key)))
            assert received[-1] == message(b"%d" % (kept[-1] - 1), size, key)
            assert lost == LOST + b"%d" % (many - kept[-1])
        assert kept == expected
        assert len(bus.stderr_text().splitlines()) == 2, "one report for each of them"


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
