"""Messages with receipts, and a bus of bare packets a worker of which dies."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import pytest

from sbus.client import blocking
from sbus.errors import PacketRefused
from sbus.protocol.packets import Message
from sbus.protocol.receipts import Receipt
from tests.support.threads import Task
from tests.unit.client.fake_bus import FakeBus

Bus: TypeAlias = blocking.Connection[Message]
TIMEOUT_S = 60.0
LOST = b"CMSG !/error\0packets-lost 1 packet was not processed"


def begin(fake: FakeBus, call: Callable[[], object]) -> tuple[Task, bytes]:
    """Another thread publishes; the token of the receipt that it waits for."""
    publishing = Task(call)
    word, token, *_ = fake.receive().split(b"\0")
    assert word == b"CMSG !/publish"
    return publishing, token


def mark(fake: FakeBus) -> bytes:
    packet = fake.receive()
    assert packet.startswith(b"CMSG !/sync\0")
    return packet


def test_a_receipt_that_died_with_a_worker_is_not_waited_for(fake: FakeBus, bus: Bus) -> None:
    call = partial(bus.publish_with_receipt, "a", timeout_seconds=TIMEOUT_S)
    publishing, _ = begin(fake, call)
    fake.send(LOST)
    fake.send(mark(fake))
    with pytest.raises(PacketRefused, match="nobody knows whether") as caught:
        publishing.join(TIMEOUT_S)
    assert caught.value.code == "packets-lost"


def test_a_receipt_that_comes_after_all_counts(fake: FakeBus, bus: Bus) -> None:
    receipts: list[Receipt] = []
    publishing, token = begin(
        fake,
        lambda: receipts.append(bus.publish_with_receipt("a", timeout_seconds=TIMEOUT_S)),
    )
    fake.send(LOST)
    fake.send(b"CMSG !/receipt\0%b\x001 2 3" % token, mark(fake))
    publishing.join(TIMEOUT_S)
    assert receipts == [Receipt(1, 2, 3)]


def test_a_receipt_that_was_asked_for_later_is_waited_for(fake: FakeBus, bus: Bus) -> None:
    call = partial(bus.publish_with_receipt, "a", timeout_seconds=TIMEOUT_S)
    first, _ = begin(fake, call)
    fake.send(LOST)
    asked = mark(fake)
    fake.send(asked)
    with pytest.raises(PacketRefused):
        first.join(TIMEOUT_S)
    second, token = begin(fake, call)
    fake.send(asked, b"CMSG !/receipt\0%b\x001 0 0" % token)
    second.join(TIMEOUT_S)
