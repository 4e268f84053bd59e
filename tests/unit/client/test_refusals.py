"""Whose refusal it is."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from sbus.client.refusals import Refusals
from sbus.client.requests import WhoamiBarrier
from sbus.errors import PacketRefused
from sbus.protocol.codes import PACKETS_LOST

ANSWER = b"!/cred/1/2/3"
PUBLISHED = b"MSG a\0"
WITH_RECEIPT = b"CMSG !/publish\0t\0a\0"
NO = PacketRefused("not-allowed", "no")

Tasks = Callable[[], Coroutine[Any, Any, None]]


async def nothing() -> None:
    pass


@pytest.fixture
def new_task() -> Iterator[Tasks]:
    """Makes coroutines, which stand for tasks that have not ended."""
    made: list[Coroutine[Any, Any, None]] = []

    def make() -> Coroutine[Any, Any, None]:
        made.append(nothing())
        return made[-1]

    yield make
    for task in made:
        task.close()


class Connection:
    """The refusals of one, and its barrier."""

    def __init__(self) -> None:
        self.barrier = WhoamiBarrier()
        self.refusals = Refusals(self.barrier)

    def be(self, task: object) -> None:
        self.refusals.current_task = lambda: task

    def publish(self, task: object) -> None:
        self.be(task)
        self.refusals.note_sent(PUBLISHED)

    def sync(self) -> None:
        self.refusals.note_barrier(self.barrier.sent(b""))

    def is_told(self, task: object) -> bool:
        self.be(task)
        try:
            self.refusals.raise_next()
        except PacketRefused:
            return True
        return False


def test_is_told_to_the_one_task_of_its_section_whoever_asks(new_task: Tasks) -> None:
    connection, (one, other) = Connection(), (new_task(), new_task())
    connection.publish(one)
    connection.be(other)
    connection.sync()
    connection.publish(other)
    connection.refusals.add(NO)  # before the reply
    assert not connection.is_told(other)
    assert connection.is_told(one)
    connection.barrier.replied(ANSWER)
    connection.refusals.add(NO)  # after it
    assert not connection.is_told(one)
    assert connection.is_told(other)


def test_is_told_to_none_of_several(new_task: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    connection, tasks = Connection(), (new_task(), new_task())
    for task in tasks:
        connection.publish(task)
    connection.refusals.add(NO)
    connection.refusals.add(NO)
    assert not any(map(connection.is_told, tasks))
    assert [record.getMessage() for record in caplog.records] == ["no (not-allowed)"]


def test_a_message_with_a_receipt_does_not_count(new_task: Tasks) -> None:
    connection, (one, other) = Connection(), (new_task(), new_task())
    connection.publish(one)
    connection.be(other)
    connection.refusals.note_sent(WITH_RECEIPT)
    connection.refusals.add(NO)
    assert connection.is_told(one)


def test_that_another_task_reads_is_logged_too(
    new_task: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    """The task may only publish, and never ask."""
    connection, (one, other) = Connection(), (new_task(), new_task())
    connection.publish(one)
    connection.refusals.add(NO)
    assert caplog.records == []
    connection.be(other)
    for _ in range(5):
        connection.refusals.add(NO)
    assert len(caplog.records) == 1
    connection.be(one)
    with pytest.raises(PacketRefused, match="no; 5 more refused since"):
        connection.refusals.raise_next()


def test_of_tasks_that_have_ended_is_logged_and_forgotten(
    new_task: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    connection, other = Connection(), new_task()
    for _ in range(100):
        ending = new_task()
        connection.publish(ending)
        connection.refusals.add(NO)
        ending.close()
        connection.sync()
        connection.barrier.replied(ANSWER)
    assert not connection.is_told(other)
    assert len(caplog.records) == 100
    assert connection.refusals._waiting == {}


def test_lost_packets_concern_every_task(new_task: Tasks) -> None:
    connection, (one, other) = Connection(), (new_task(), new_task())
    connection.publish(one)
    connection.refusals.add(PacketRefused(PACKETS_LOST, "2 packets"))
    connection.be(other)
    connection.refusals.raise_next(but_lost=True)
    assert connection.is_told(other)


def test_a_new_connection_begins_without_a_section(new_task: Tasks) -> None:
    connection, (one, other) = Connection(), (new_task(), new_task())
    connection.publish(one)
    connection.be(other)
    assert connection.refusals.others_have_sent
    connection.refusals.abandon_sections()
    assert not connection.refusals.others_have_sent
    connection.refusals.add(NO)
    assert connection.is_told(other)
