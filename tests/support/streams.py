"""Watchers of a bus in tests: streams that are open during a block, and are read up to a known end.

The end is a message or an event of its own, so that no test waits in vain.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sbus.client.admin import AdminConnection
from sbus.client.message_joiner import MissedItems, MonitoredMessage
from sbus.client.streams import EventStream, MessageStream
from tests.support.bus import Bus
from tests.support.raw_client import RawClient

TIMEOUT_S = 60.0
END = b"the/end"


@contextmanager
def messages_of(bus: Bus, *patterns: bytes, payload: bool = False) -> Iterator[MessageStream]:
    with AdminConnection(bus.address) as connection:
        stream = MessageStream(connection, patterns, payload=payload)
        assert stream.unanswered == []
        yield stream


class EventReader:
    """A stream of events, each returned once; nothing may be missed. Operations that took long
    are left out: any may, on a busy machine."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self._ahead: list[dict[str, Any]] = []

    def up_to(self, is_last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """All events up to and including the first one that fits."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + TIMEOUT_S
        while not (found and is_last(found[-1])):
            if self._ahead:
                found.append(self._ahead.pop(0))
                continue
            assert time.monotonic() < deadline, f"not among {found}"
            for one in self.stream.receive_many(1.0):
                assert not isinstance(one, MissedItems)
                if one["event"] != "slow-operation":
                    self._ahead.append(one)
        return found

    def next(self, kind: str, **fields: object) -> dict[str, Any]:
        """The next event of this kind with these fields."""
        return self.up_to(lambda event: event["event"] == kind and fields.items() <= event.items())[
            -1
        ]


@contextmanager
def events_of(bus: Bus) -> Iterator[EventReader]:
    with AdminConnection(bus.address) as connection:
        stream = EventStream(connection)
        assert stream.unanswered == []
        yield EventReader(stream)


def read_to_end(
    stream: MessageStream, publisher: RawClient
) -> list[MonitoredMessage | MissedItems]:
    """Everything before a message that is published now."""
    publisher.pub(END, b"")
    found: list[MonitoredMessage | MissedItems] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not any(isinstance(one, MonitoredMessage) and one.key == END.decode() for one in found):
        assert time.monotonic() < deadline, f"no end after {len(found)} items"
        found += stream.receive_many(1.0)
    assert isinstance(found[-1], MonitoredMessage)
    return found[:-1]


def messages_to_end(stream: MessageStream, publisher: RawClient) -> list[MonitoredMessage]:
    """The same where nothing may be missed."""
    found = read_to_end(stream, publisher)
    messages = [one for one in found if isinstance(one, MonitoredMessage)]
    assert len(messages) == len(found), "something was missed"
    return messages
