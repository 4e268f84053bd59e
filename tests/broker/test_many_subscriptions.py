"""The subscription table is compacted without effect on clients, and reports when it is full.

Small tables make that happen all the time.
"""

import itertools
from functools import partial
from pathlib import Path

from tests.support.bus import running_bus
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient
from tests.support.threads import run_together
from tests.support.traffic import Stream, flowing

SMALL_TABLE = ("--limit", "table_bytes=65536")
AT_ONCE = 25


def subscribe_and_unsubscribe(client: RawClient, own: int, rounds: int) -> None:
    """Subscribe, publish, unsubscribe, publish: exactly the first message must come back."""
    for start in range(0, rounds, AT_ONCE):
        for number in range(start, start + AT_ONCE):
            key = b"own/%d/%d/%b" % (own, number, b"x" * 60)
            client.sub(key)
            client.pub(key, b"during")
            client.unsub(key)
            client.pub(key, b"after")
        received = client.sync()
        expected = [
            b"MSG own/%d/%d/%b\0during" % (own, number, b"x" * 60)
            for number in range(start, start + AT_ONCE)
        ]
        assert received == expected


def test_routes_stay_correct_while_hundreds_of_subscriptions_change(tmp_path: Path) -> None:
    """Several times what the table holds; some clients keep theirs, and messages flow."""
    workers, each, held_by_each, rounds = 3, 3, 15, 300
    with (
        running_bus(tmp_path, *SMALL_TABLE, workers=workers) as bus,
        clients_on_each(bus, workers, each) as places,
    ):
        streams = [
            Stream(clients[0], places[(at + 1) % workers][0], b"stream/%d" % at)
            for at, clients in enumerate(places)
        ]
        holders = [clients[1] for clients in places]
        for at, holder in enumerate(holders):
            for number in range(held_by_each):
                holder.sub(b"held/%d/%d/" % (at, number))
                holder.sub(b"held/%d/%d/" % (at, number))
            holder.whoami()
        visitors = [clients[2] for clients in places]
        with flowing(*streams):
            run_together(
                *(
                    partial(subscribe_and_unsubscribe, visitor, own, rounds)
                    for own, visitor in enumerate(visitors)
                )
            )
        for (at, holder), number in itertools.product(enumerate(holders), range(held_by_each)):
            for expected in (1, 1, 0):
                for visitor in visitors:
                    visitor.pub(b"held/%d/%d/x" % (at, number), b"")
                    visitor.whoami()
                assert len(holder.sync()) == expected * len(visitors)
                holder.unsub(b"held/%d/%d/" % (at, number))
                holder.whoami()


def fill(client: RawClient, prefix: bytes) -> list[bytes]:
    """Subscribe to one pattern after the other until the bus refuses one; those that hold."""
    patterns: list[bytes] = []
    for number in range(5_000):
        pattern = b"%b/%d/%b" % (prefix, number, b"x" * 100)
        client.sub(pattern)
        replies = client.sync()
        if replies:
            (notice,) = replies
            assert notice.startswith(b"CMSG !/error\0table-full ")
            return patterns
        patterns.append(pattern)
    raise AssertionError("the table is never full")


def assert_heard(listener: RawClient, publisher: RawClient, keys: list[bytes]) -> None:
    """The listener receives exactly these keys; it asked for nothing else that is published."""
    for key in keys:
        publisher.pub(key, b"")
    publisher.sync()
    assert [packet for packet in listener.sync() if packet.startswith(b"MSG ")] == [
        b"MSG %b\0" % key for key in keys
    ]


def test_a_full_table_refuses_until_there_is_room_again(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, *SMALL_TABLE) as bus,
        clients_on_each(bus, 2) as ((greedy,), (other,)),
    ):
        for client in (greedy, other):
            client.control(b"!/notices/on")
        patterns = fill(greedy, b"first")
        assert len(patterns) > 300
        assert_heard(greedy, other, patterns)
        other.sub(b"no room".ljust(len(patterns[-1]), b"!"))
        (notice,) = other.sync()
        assert notice.startswith(b"CMSG !/error\0table-full ")
        for pattern in patterns[:200]:
            greedy.unsub(pattern)
        assert greedy.sync() == []
        other.sub(b"room")
        assert other.sync() == []
        assert_heard(other, greedy, [b"room"])
        assert_heard(greedy, other, patterns[200:])
        again = fill(other, b"second")
        assert len(again) > 100
        assert_heard(other, greedy, again)
