"""What the blocking client alone has: other threads that close it, and a descriptor to poll."""

import select
from collections.abc import Callable
from typing import TypeAlias

import pytest

from sbus.client import blocking
from sbus.errors import Disconnected
from sbus.protocol.packets import Message
from tests.support.threads import Task, wait_until
from tests.unit.client.fake_bus import ANSWER, GREETING, WHOAMI, FakeBus

Bus: TypeAlias = blocking.Connection[Message]
TIMEOUT_S = 10.0


@pytest.fixture
def bus(fake: FakeBus) -> Bus:
    with fake.admitting():
        bus = blocking.connect(fake.address)
    assert fake.accept() == GREETING
    return bus


def is_in_use(bus: Bus) -> bool:
    """Whether a thread is in a call; does not disturb one that is about to be."""
    return repr(bus._io.call.in_use).startswith("<locked")


def publish_for_ever(bus: Bus) -> None:
    while True:
        bus.publish("a", bytes(100_000))


class TestClosing:
    @pytest.mark.parametrize(
        "call",
        [blocking.Connection.receive, blocking.Connection.receive_many, blocking.Connection.sync],
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

    def test_ends_another_threads_wait_for_room(self, bus: Bus) -> None:
        waiting = Task(lambda: publish_for_ever(bus))
        wait_until(lambda: is_in_use(bus), "the other thread publishes")
        bus.close()
        with pytest.raises(Disconnected, match="this program has closed"):
            waiting.join(TIMEOUT_S)

    def test_ends_another_threads_iteration(self, bus: Bus) -> None:
        waiting = Task(lambda: list(bus))
        wait_until(lambda: is_in_use(bus), "the other thread iterates")
        bus.close()
        waiting.join(TIMEOUT_S)

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

    def test_twice_is_fine(self, bus: Bus) -> None:
        bus.close()
        bus.close()


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
