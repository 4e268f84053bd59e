"""The backlogs of one user's clients have a common bound, over all workers.

A client takes at most as much of it as it leaves to the user's others, and a user of the bus's as
much as it leaves to other users (`shares`). Beyond that, the hard policy of the client decides.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.flood import LOST, filling, give_turns, message
from tests.support.inheritance import inherited_connection
from tests.support.processes import several_clients
from tests.support.quotas import assert_reported_once, bus_with, shares
from tests.support.raw_client import RawClient
from tests.support.secrets import address_of, sync
from tests.support.threads import Task
from tests.support.users import become, directory_for_everybody, needs_root

SIZE = 1_000
KEEPING_BYTES = SIZE + 64
MANY = 12


def flood(
    slow: RawClient,
    publisher: RawClient,
    witnesses: Sequence[RawClient],
    key: bytes,
    *choices: bytes,
) -> list[bytes]:
    """Fill a client's socket and publish `MANY` more messages for it; all that was published."""
    for choice in (b"!/notices/on", *choices):
        slow.control(choice)
    slow.sub(key)
    slow.whoami()
    packets = filling(key)
    packets += [message(b"%d" % number, SIZE, key) for number in range(MANY)]
    for packet in packets:
        publisher.send(packet)
    publisher.whoami()
    give_turns(witnesses)
    return packets


def kept(received: list[bytes], published: list[bytes]) -> int:
    """How many messages were kept beyond what the socket holds; checks that the rest is told."""
    fewer = MANY - (len(published) - len(received)) - 1
    assert received == [*published[: len(received) - 1], LOST + b"%d" % (MANY - fewer)]
    return fewer


@pytest.mark.parametrize(
    ("workers", "quota", "expected"),
    [
        (1, "user_backlog_bytes_max", shares(8, 4)),
        (4, "user_backlog_bytes_max", shares(8, 4)),
        (4, "bus_backlog_bytes_max", [4, 0, 0, 0]),
    ],
)
def test_each_backlog_takes_at_most_as_much_as_it_leaves_to_others(
    tmp_path: Path, workers: int, quota: str, expected: list[int]
) -> None:
    """Of what is the bus's, the user takes half, and the first client all of that."""
    with (
        bus_with(tmp_path, workers, **{quota: 8 * KEEPING_BYTES}) as bus,
        several_clients(bus, 4 + 1 + workers) as (publisher, *clients),
    ):
        slow, witnesses = clients[:4], clients[4:]
        published = [
            flood(client, publisher, witnesses, b"%d" % number)
            for number, client in enumerate(slow)
        ]
        assert_reported_once(bus)
        received = [client.sync() for client in slow]
        assert [kept(*each) for each in zip(received, published, strict=True)] == expected
        # All of it was given back.
        again = flood(slow[3], publisher, witnesses, b"4")
        assert kept(slow[3].sync(), again) == 4


def test_the_hard_policy_decides_when_the_user_s_quota_is_full(tmp_path: Path) -> None:
    with (
        bus_with(tmp_path, 1, user_backlog_bytes_max=8 * KEEPING_BYTES) as bus,
        several_clients(bus, 4) as (publisher, witness, first, second),
    ):
        published = flood(first, publisher, [witness], b"1")
        given_up = flood(second, publisher, [witness], b"2", b"blocking/hard/error")
        *received, why = second.receive_until_closed()
        assert received == given_up[: len(received)]
        assert why.startswith(b"CMSG !/error\0too-slow ")
        assert kept(first.sync(), published) == 4


def test_a_blocking_client_is_bounded_by_its_user_s_quota(tmp_path: Path) -> None:
    """It loses nothing when others of the user's have taken their share."""
    limits = {"user_backlog_bytes_max": 8 * KEEPING_BYTES, "user_held_seconds_max": 60}
    with (
        bus_with(tmp_path, 2, **limits) as bus,
        several_clients(bus, 6) as (publisher, other_publisher, first, second, *witnesses),
    ):
        published = flood(first, publisher, witnesses, b"1")
        second.control(b"!/notices/on")
        second.control(b"blocking/hard/block")
        second.sub(b"2")
        second.whoami()
        packets = filling(b"2") + [message(b"%d" % number, SIZE, b"2") for number in range(300)]

        def publish() -> None:
            for packet in packets:
                other_publisher.send(packet)
            other_publisher.whoami()

        publishing = Task(publish)
        received = [second.receive() for _ in packets]
        publishing.join()
        assert received == packets
        assert second.sync() == []
        assert kept(first.sync(), published) == 4


@needs_root
@pytest.mark.parametrize(
    ("quota", "expected"), [("user_backlog_bytes_max", 4), ("bus_backlog_bytes_max", 2)]
)
def test_users_do_not_share_the_backlog_quota(quota: str, expected: int) -> None:
    with (
        directory_for_everybody() as directory,
        bus_with(directory, 2, **{quota: 8 * KEEPING_BYTES}) as bus,
        several_clients(bus, 5) as (publisher, slow, *witnesses),
        inherited_connection(address_of(bus), become()) as stranger,
    ):
        published = flood(slow, publisher, witnesses, b"k")
        for packet in (b"CMSG !/notices/on", b"SUB j"):
            stranger.send(packet)
        assert sync(stranger) == []
        packets = filling(b"j") + [message(b"%d" % number, SIZE, b"j") for number in range(MANY)]
        for packet in packets:
            publisher.send(packet)
        publisher.whoami()
        give_turns(witnesses)
        assert kept(sync(stranger), packets) == expected
        assert kept(slow.sync(), published) == 4
