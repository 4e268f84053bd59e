"""Messages that waited before their client chose the order `latest`."""

from sbus.broker.delivery.backlog import Backlog, Gap
from sbus.broker.delivery.backlog_section import ControlMessage
from sbus.protocol.controls import BacklogOrder

Item = bytes | Gap | ControlMessage


def taken(backlog: Backlog) -> list[Item]:
    items: list[Item] = []
    while backlog:
        backlog.index(1_000_000)
        items.append(backlog.first())
        backlog.pop()
    return items


def message(key: str, payload: int) -> bytes:
    return b"MSG %s\0%d" % (key.encode(), payload)


def test_what_waited_before_is_replaced_when_as_many_messages_have_come() -> None:
    """The client was served elsewhere, or has chosen the order only now."""
    backlog = Backlog(BacklogOrder.QUEUE)
    for number in range(100):
        backlog.append(message(str(number % 10), number))
    backlog.reorder(BacklogOrder.LATEST)
    assert backlog.messages == 100
    for number in range(100, 200):
        backlog.append(message(str(number % 10), number))
    assert backlog.unindexed == 0
    assert taken(backlog) == [message(str(number % 10), number) for number in range(190, 200)]
    assert backlog.replaced == 190
