"""The rate limit of one user: faster publishers are held back, and nothing is refused or lost.

All publishers of the user count together, on all workers; a second's worth may come at once.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import several_clients
from tests.support.quotas import assert_reported_once, bus_with
from tests.support.raw_client import WHOAMI, RawClient

RATE = 200
BEYOND = 150
"""So many messages are published beyond what may come at once."""
BATCH = 4
"""So many messages of one client may be too many."""


def publish_and_ask(publishers: Sequence[RawClient]) -> list[bytes]:
    """One second's worth and more, in equal parts; each then waits for an answer."""
    packets = [b"MSG k\0%d" % number for number in range(RATE + BEYOND)]
    for number, packet in enumerate(packets):
        publishers[number % len(publishers)].send(packet)
    for publisher in publishers:
        publisher.control(WHOAMI)
    return packets


def test_faster_publishers_are_held_back_and_nothing_is_refused(tmp_path: Path) -> None:
    """How soon the next is due is tested with a clock of its own (tests/unit/shared)."""
    publishers = 3
    limits = {"user_messages_per_second_max": RATE, "batch_packets_max": BATCH}
    with (
        bus_with(tmp_path, 4, **limits) as bus,
        several_clients(bus, publishers + 1) as (subscriber, *clients),
    ):
        subscriber.sub(b"k")
        subscriber.whoami()
        began_at = time.monotonic()
        packets = publish_and_ask(clients)
        received = [subscriber.receive() for _ in packets]
        seconds = time.monotonic() - began_at
        assert seconds > (BEYOND - BATCH * publishers) / RATE
        assert sorted(received) == sorted(packets)
        for number in range(publishers):
            own = packets[number::publishers]
            assert [packet for packet in received if packet in own] == own
        for client in clients:
            assert client.receive().startswith(b"CMSG " + WHOAMI)
        subscriber.whoami()
        assert_reported_once(bus)
