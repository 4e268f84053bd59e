"""A successor goes on with the last block or batch of its predecessor, and with nothing older."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from sbus.broker.worker import ordinary_step
from sbus.compiled import STEP
from sbus.limits import Limits
from sbus.shared.in_flight import SEQUENCE_BITS
from sbus.shared.shared_memory import LOG_HEAD
from tests.fuzz.one_process_bus import OneProcessBus, Peer, one_process_bus
from tests.unit.broker.worker.bus_states import interrupt_batch, tell

LIMITS = Limits(log_bytes=8 * 1024 * 1024, table_bytes=1024 * 1024)
FOR_NOBODY = b"MSG !/cred/999/1000//s\0"
"""No client has this group, which is known only where the patterns of these are."""


@pytest.fixture(params=sorted({"python", STEP}))
def bus(request: pytest.FixtureRequest) -> Iterator[OneProcessBus]:
    with (
        patch.object(ordinary_step, "STEP", request.param),
        one_process_bus("slash", LIMITS) as opened,
    ):
        yield opened


def connect_reader(bus: OneProcessBus) -> Peer:
    reader = bus.connect(0)
    tell(bus, reader, b"CMSG !/notices/on", b"SUB k", b"SUB !/cred//1000//s")
    return reader


def publish(bus: OneProcessBus, writer: Peer, message: bytes) -> None:
    """Have a client of the second worker publish, and no other worker walk."""
    writer.send(message)
    while bus.stepped[1].is_awake():
        pass


@pytest.mark.parametrize("blocks", range(2**SEQUENCE_BITS - 4, 2**SEQUENCE_BITS + 2))
def test_blocks_for_nobody_leave_no_delivery_under_way(bus: OneProcessBus, blocks: int) -> None:
    """A walk passes as many positions as it has log blocks, and its end: `blocks` in all."""
    readers = [connect_reader(bus) for _ in range(3)]
    writer = bus.connect(1)
    tell(bus, writer, b"MSG k\0first")
    if blocks % 2:
        for _ in range(2):
            publish(bus, writer, FOR_NOBODY)
        bus.settle()
    for _ in range((blocks - 3 * (blocks % 2)) // 2):
        tell(bus, writer, FOR_NOBODY)
    publish(bus, writer, b"MSG k\0second")
    bus.replace(0)
    bus.settle()
    assert [reader.read() for reader in readers] == [[b"MSG k\0first", b"MSG k\0second"]] * 3


def test_an_interrupted_batch_is_admitted_once(bus: OneProcessBus) -> None:
    """Also when the first successor dies before it has told of that."""
    reader = connect_reader(bus)
    interrupt_batch(bus, 0)
    bus.replace(0)
    for _ in range(2):
        bus.replace(0)
        bus.settle()
    assert reader.read() == [b"CMSG !/lost\x001"]


def test_what_is_lost_of_a_batch_is_told_behind_what_came_before_it(bus: OneProcessBus) -> None:
    """There was no room for the key of its second message, so nobody knows whom that was for."""
    reader, writer = connect_reader(bus), bus.connect(1)
    tell(bus, writer, b"MSG k\0walked")
    publish(bus, writer, b"MSG k\0before")
    interrupt_batch(bus, 0, messages=2)
    bus.replace(0)
    bus.settle()
    assert reader.read() == [
        *(b"MSG k\0walked", b"MSG k\0before"),
        *(b"CMSG !/lost\x001", b"CMSG !/lost\0?"),
    ]


@pytest.mark.parametrize(
    ("requests", "received"),
    [([b"SUB k"], b"MSG k\0behind"), ([b"SUB k", b"UNSUB k"], b"MSG k\0before")],
)
def test_a_subscription_begins_and_ends_at_its_place(
    bus: OneProcessBus, requests: list[bytes], received: bytes
) -> None:
    """The worker died as soon as that was journalled, before it had walked up to there."""
    _, client, writer = connect_reader(bus), bus.connect(0), bus.connect(1)
    tell(bus, client, *requests)
    publish(bus, writer, b"MSG k\0before")
    slot, in_flight = bus.workers[0].sessions[client.number].slot, bus.workers[0].context.in_flight
    slot.keep_request(requests[-1], 1)
    with bus.memory.lock as words:
        in_flight.note_step(words, words[LOG_HEAD])
        in_flight.place_request(words, slot.begin_step())
    bus.replace(0)
    tell(bus, writer, b"MSG k\0behind")
    assert client.read() == [received]


def test_a_loss_of_unknown_size_includes_the_interrupted_batch(bus: OneProcessBus) -> None:
    """The log was not kept, because the successor came late."""
    reader = connect_reader(bus)
    interrupt_batch(bus, 0)
    bus.replace(0, is_late=True)
    bus.settle()
    assert reader.read() == [b"CMSG !/lost\0?"]
    bus.replace(0)
    bus.settle()
    assert reader.read() == []


def test_clients_that_came_later_have_lost_nothing_of_a_batch(bus: OneProcessBus) -> None:
    """The first successor had no clients to take over."""
    interrupt_batch(bus, 0)
    bus.replace(0)
    reader = connect_reader(bus)
    bus.replace(0)
    bus.settle()
    assert reader.read() == []
