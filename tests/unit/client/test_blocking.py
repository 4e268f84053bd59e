"""What the blocking client alone has: other threads that close it, and a descriptor to poll."""

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import pytest

from sbus.client import blocking
from sbus.errors import Disconnected
from sbus.protocol.packets import Message
from tests.support.threads import Task, wait_until
from tests.unit.client.fake_bus import ANSWER, GREETING, WHOAMI, FakeBus

Bus: TypeAlias = blocking.Connection[Message]
TIMEOUT_S = 60.0
SOON_S = 0.05


@pytest.fixture
def bus(fake: FakeBus) -> Bus:
    with fake.admitting():
        bus = blocking.connect(fake.address)
    assert fake.accept() == GREETING
    return bus


def is_in_use(bus: Bus) -> bool:
    """Whether a thread is in a call; does not disturb one that is about to be."""
    return repr(bus._io.call.in_use).startswith("<locked")


def fill(bus: Bus) -> None:
    """Leave no room in the socket."""
    with socket.socket(fileno=os.dup(bus.fileno())) as sock, suppress(BlockingIOError):
        while True:
            sock.send(bytes(1_000), socket.MSG_DONTWAIT)


def publish_for_ever(bus: Bus) -> None:
    while True:
        bus.publish("a", bytes(100_000))


class TestClosing:
    @pytest.mark.parametrize(
        "call",
        [
            blocking.Connection.receive,
            blocking.Connection.receive_many,
            blocking.Connection.sync,
            publish_for_ever,
        ],
    )
    def test_ends_another_threads_wait_with_an_error(
        self, bus: Bus, call: Callable[[Bus], object]
    ) -> None:
        waiting = Task(lambda: call(bus))
        wait_until(lambda: is_in_use(bus), "the other thread waits")
        bus.close()
        with pytest.raises(Disconnected, match="this program has closed"):
            waiting.join(TIMEOUT_S)
        assert bus.fileno() == -1

    def test_ends_another_threads_iteration(self, bus: Bus) -> None:
        waiting = Task(lambda: list(bus))
        wait_until(lambda: is_in_use(bus), "the other thread iterates")
        bus.close()
        waiting.join(TIMEOUT_S)

    def test_twice_is_fine(self, bus: Bus) -> None:
        bus.close()
        bus.close()

    def test_ends_another_threads_wait_for_the_next_bus(
        self, fake: FakeBus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sbus.client.reconnection.DELAY_SECONDS_MIN", 1_000.0)
        monkeypatch.setattr("sbus.client.reconnection.DELAY_SECONDS_MAX", 1_000.0)

        def welcome() -> None:
            fake.accept()
            fake.answer(WHOAMI, ANSWER)

        answering = Task(welcome)
        bus = blocking.connect(fake.address, reconnect=True)
        answering.join()
        fake.hang_up()
        waiting = Task(bus.receive)
        wait_until(lambda: is_in_use(bus), "the other thread waits for a bus")
        bus.close()
        with pytest.raises(Disconnected, match="this program has closed"):
            waiting.join(TIMEOUT_S)


class TestTimeout:
    """Of a call whose own limits would be longer."""

    @pytest.fixture(autouse=True)
    def _long_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sbus.client.waiting_link.REASON_SECONDS_MAX", 10 * TIMEOUT_S)

    def test_ends_the_wait_for_the_reason_of_the_end(self, fake: FakeBus, bus: Bus) -> None:
        assert fake.client is not None
        fake.client.shutdown(0)  # SHUT_RD, and the reason does not come
        with bus, pytest.raises(TimeoutError):
            bus.publish("a", timeout_seconds=SOON_S)

    def test_ends_the_wait_at_the_end_of_a_block(self, fake: FakeBus, bus: Bus) -> None:
        """For room to unsubscribe."""

        def subscribe() -> None:
            with bus.subscription("a", timeout_seconds=10 * SOON_S):
                raise AssertionError("the bus has not answered")

        task = Task(subscribe)
        assert [fake.receive(), fake.receive()] == [b"SUB a", WHOAMI]
        fill(bus)
        with pytest.raises(TimeoutError):
            task.join(TIMEOUT_S)
        bus.close()

    def test_of_a_block_in_time_leaves_it_its_own_limits(
        self, fake: FakeBus, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sbus.client.waiting_link.REASON_SECONDS_MAX", SOON_S)
        fake.send(ANSWER)
        with bus, bus.subscription("a", timeout_seconds=TIMEOUT_S):
            fill(bus)

    def test_on_a_quiet_bus_does_not_blame_the_bus(self, bus: Bus) -> None:
        with bus:
            with pytest.raises(TimeoutError, match=r"nothing came within 0\.05 s"):
                bus.receive(timeout_seconds=SOON_S)
            with pytest.raises(TimeoutError, match=r"the bus gave no answer within 0\.05 s"):
                bus.sync(timeout_seconds=SOON_S)


def test_two_threads_at_a_time_are_an_error(fake: FakeBus, bus: Bus) -> None:
    waiting = Task(bus.receive)
    wait_until(lambda: is_in_use(bus), "the other thread waits")
    with pytest.raises(RuntimeError, match="another thread uses this connection"):
        bus.publish("a")
    fake.receive_nothing()
    fake.send(b"MSG a\x001")
    waiting.join(TIMEOUT_S)
    bus.close()


def test_the_descriptor_can_be_polled_when_nothing_waits_to_be_taken(
    fake: FakeBus, bus: Bus
) -> None:
    poll = select.poll()
    poll.register(bus.fileno(), select.POLLIN)
    assert not poll.poll(0)
    fake.send(b"MSG a\x001", b"MSG a\x002")
    assert poll.poll(0) == [(bus.fileno(), select.POLLIN)]
    assert len(bus.receive_many(timeout_seconds=0)) == 2
    with pytest.raises(TimeoutError):
        bus.receive_many(timeout_seconds=0)
    assert not poll.poll(0)
    bus.close()
