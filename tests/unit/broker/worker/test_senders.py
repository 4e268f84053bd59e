"""Clients with `sender/on`: who has published each message, and its place in the total order."""

from collections.abc import Iterator

import pytest

from sbus.limits import Limits
from sbus.shared.worker_statistics import ACCEPTED_BYTES
from tests.fuzz.one_process_bus import OneProcessBus, Peer, one_process_bus
from tests.support.senders import SentBy, without_sender
from tests.unit.broker.worker.bus_states import tell


@pytest.fixture
def bus() -> Iterator[OneProcessBus]:
    with one_process_bus("slash", Limits()) as opened:
        yield opened


def told(peer: Peer) -> list[tuple[SentBy, bytes]]:
    """What a client receives that is told the senders."""
    found = [without_sender(packet) for packet in peer.read()]
    return [(sent_by, packet) for sent_by, packet in found if sent_by is not None]


def test_places_grow_also_when_the_clock_is_behind(bus: OneProcessBus) -> None:
    """As after the bus has moved to a machine whose clock began later."""
    from sbus.shared.shared_memory import LAST_PLACE

    reader, writer = bus.connect(0), bus.connect(1)
    tell(bus, reader, b"CMSG sender/on", b"SUB k")
    with bus.memory.lock as words:
        words[LAST_PLACE] = ahead = 1 << 62
    for peer in (writer, reader):
        tell(bus, peer, b"MSG k\0", b"MSG k\0")
    assert [sent_by.place for sent_by, _ in told(reader)] == [ahead + 1 + n for n in range(4)]


def test_what_is_told_counts_as_accepted_and_delivered(bus: OneProcessBus) -> None:
    reader = bus.connect(0)
    tell(bus, reader, b"CMSG sender/on", b"SUB k")
    statistics = bus.workers[0].context.statistics
    before = statistics.counts[ACCEPTED_BYTES]
    tell(bus, reader, b"MSG k\0", b"MSG k\0")
    received = reader.read()
    assert len(received) == 2
    assert statistics.counts[ACCEPTED_BYTES] - before == sum(map(len, received))
    assert bus.workers[0].sessions[reader.number].outbox.delivered_bytes >= sum(map(len, received))
