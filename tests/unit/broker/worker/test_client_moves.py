"""A worker hands clients over when they are at rest, and does its other work meanwhile."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from sbus.broker.config.access_policy import encode_rule_set
from sbus.broker.ipc.client_record import ClientRecord
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ClientArrived,
    ClientDescribed,
    ClientHandedOver,
    ClientPrepared,
    DescribeClient,
    DisconnectClient,
    HandOverClient,
    MoveDeclined,
    PrepareClient,
)
from sbus.limits import Limits
from tests.fuzz.one_process_bus import CREDENTIALS, OneProcessBus, Peer, one_process_bus

PER_SECOND = 100
LIMITS = Limits(
    log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024, user_messages_per_second_max=PER_SECOND
)
BATCH = LIMITS.batch_packets_max
KEPT_AFTER_SECONDS = 1.0
"""When a client that waits for its rate is read again where it was."""
RETRY_SECONDS = 0.001
"""When a worker looks again whether a client is at rest."""

Advance = Callable[[float], None]


@pytest.fixture
def bus(advance: Advance) -> Iterator[OneProcessBus]:
    with one_process_bus("slash", LIMITS) as opened:
        yield opened


def connect_limited(bus: OneProcessBus) -> Peer:
    """A client that waits for its rate with most of a batch of messages."""
    peer = bus.connect(0)
    bus.settle()
    for number in range(BATCH):
        peer.send(b"MSG k\0%d" % number)
    bus.settle()
    assert bus.workers[0].sessions[peer.number] in bus.workers[0].wait_queue
    return peer


def settle_in(bus: OneProcessBus, advance: Advance, seconds: float) -> None:
    advance(seconds)
    bus.settle()


def test_a_client_that_waits_for_its_rate_is_described(
    bus: OneProcessBus, advance: Advance
) -> None:
    peer = connect_limited(bus)
    bus.tell(0, DescribeClient(peer.number))
    bus.settle()
    assert bus.other_events == [ClientDescribed(peer.number, ClientRecord(revision=0))]
    settle_in(bus, advance, BATCH / PER_SECOND)


def test_a_client_that_waits_for_its_rate_is_handed_over_behind_its_messages(
    bus: OneProcessBus, advance: Advance
) -> None:
    reader = bus.connect(1)
    reader.send(b"SUB k")
    bus.settle()
    bus.connect(0).send(b"MSG k\0")  # so that it is known how fast the other worker walks
    settle_in(bus, advance, 1 / PER_SECOND)
    assert reader.read() == [b"MSG k\0"]
    peer = connect_limited(bus)
    bus.tell(0, HandOverClient(peer.number, 1, 0))
    bus.settle()
    assert bus.other_events == []
    peer.send(b"MSG k\0for the other worker")
    settle_in(bus, advance, BATCH / PER_SECOND)
    assert bus.other_events == [ClientHandedOver(peer.number)]
    assert reader.read() == [b"MSG k\0%d" % number for number in range(BATCH)]


def test_a_client_that_is_to_be_handed_over_is_not_read_in_its_last_turn(
    bus: OneProcessBus, advance: Advance
) -> None:
    connect_limited(bus)  # the same user's
    peer = bus.connect(0)
    for number in range(BATCH - 1):
        peer.send(b"MSG k\0%d" % number)
    peer.send(b"CMSG !/notices/on")
    bus.settle()
    session = bus.workers[0].sessions[peer.number]
    assert session in bus.workers[0].wait_queue
    session.is_leaving = True
    peer.send(b"CMSG echo/off")
    for _ in range(2):
        settle_in(bus, advance, BATCH / PER_SECOND)
    assert session.outbox.wants_notices
    assert session.echo


def test_a_client_that_waits_for_too_long_stays_where_it_is(advance: Advance) -> None:
    slow = msgspec.structs.replace(LIMITS, user_messages_per_second_max=PER_SECOND // 4)
    with one_process_bus("slash", slow) as bus:
        reader = bus.connect(0)
        reader.send(b"SUB k")
        peer = connect_limited(bus)
        bus.tell(0, HandOverClient(peer.number, 1, 0))
        bus.settle()
        settle_in(bus, advance, KEPT_AFTER_SECONDS)
        assert bus.other_events == [MoveDeclined(peer.number, "it did not come to rest")]
        peer.send(b"MSG k\0later")
        for _ in range(2):
            settle_in(bus, advance, 4 * BATCH / PER_SECOND)
        assert len(reader.read()) == BATCH + 1


def test_a_worker_sleeps_and_does_other_work_until_a_client_is_at_rest(
    bus: OneProcessBus, advance: Advance
) -> None:
    leaving = bus.connect(0)
    for number in range(100):
        leaving.send(b"SUB pattern/%d" % number)
    bus.settle()
    peer = connect_limited(bus)
    bus.tell(0, HandOverClient(peer.number, 1, 0))
    leaving.close()
    bus.settle()
    assert bus.stepped[0].tick() == pytest.approx(RETRY_SECONDS)
    assert bus.index_sizes()[0] == (1, 0), "the patterns of the other client are left"
    settle_in(bus, advance, BATCH / PER_SECOND)
    assert bus.other_events == [ClientHandedOver(peer.number)]


def test_a_client_that_is_kicked_on_its_way_is_told_where_it_arrives(bus: OneProcessBus) -> None:
    peer = bus.connect(0)
    peer.send(b"CMSG !/notices/on")
    bus.settle()
    adoption = AdoptClient(peer.number, CREDENTIALS, bus.account.place, encode_rule_set(0))
    preparation = PrepareClient(adoption, ClientRecord(revision=0))
    bus.tell(1, preparation, bus.workers[0].sessions[peer.number].sock.fileno())
    bus.settle()
    bus.tell(0, HandOverClient(peer.number, 1, 0))
    while peer.number in (session.client for session in bus.workers[0].sessions):
        bus.stepped[0].tick()
    for worker in (0, 1):
        bus.tell(worker, DisconnectClient(peer.number, "why"))
    bus.settle()
    assert peer.read() == [b"CMSG !/error\0kicked why"]
    assert bus.other_events == [
        ClientPrepared(peer.number),
        ClientHandedOver(peer.number),
        ClientArrived(peer.number),
    ]
