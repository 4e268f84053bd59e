"""A stream of the messages that match some patterns, on a connection that has several."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, Self

from sbus.client.blocking_link import BlockingLink, Deadline
from sbus.client.link import REASON_SECONDS_MAX
from sbus.client.message_queue import Item, MessageQueue
from sbus.errors import Disconnected
from sbus.protocol.packets import undone


class Subscription(Generic[Item]):
    """What `Connection.subscription` opens; iterating over it receives messages.

    A gap is where the bus has dropped messages for the connection, as it may concern every
    subscription, or where the program has not taken them soon enough.
    """

    def __init__(self, io: BlockingLink[Item], queue: MessageQueue[Item]) -> None:
        self._io = io
        self._queue = queue

    def receive(self, *, timeout_seconds: float | None = None) -> Item:
        """The next message; raises the same as that of the connection."""
        return self._io.take(self._queue, Deadline(timeout_seconds))

    def receive_many(
        self, limit: int = 1024, *, timeout_seconds: float | None = None
    ) -> list[Item]:
        """Up to `limit` (at least 1) messages; waits until there is one."""
        return self._io.take_many(self._queue, limit, Deadline(timeout_seconds))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        try:
            return self.receive()
        except Disconnected:
            if self._io.link.closed:
                raise StopIteration from None
            raise


@contextmanager
def subscription(
    io: BlockingLink[Item], packets: list[bytes], deadline: Deadline
) -> Iterator[Subscription[Item]]:
    """A stream of the messages that match a pattern of these `SUB`, within the block."""
    with subscribed(io, packets, io.link.new_queue(), deadline) as queue:
        yield Subscription(io, queue)


@contextmanager
def subscribed(
    io: BlockingLink[Any], packets: list[bytes], queue: MessageQueue[Any], deadline: Deadline
) -> Iterator[MessageQueue[Any]]:
    """Within the block, messages that match a pattern of these `SUB` go to this queue.

    If the bus holds this client back at the end, the patterns may stay subscribed, and messages
    that match no other one are forgotten as they come.
    """
    routes = io.link.inbox.routes
    routes.open(packets, queue)
    undo = []
    try:
        for packet in packets:
            io.send(packet, deadline)
            undo.append(undone(packet))
        io.ask(io.link.barrier, deadline)
        yield queue
    finally:
        routes.close(queue)
        send_at_end(io, undo)


def send_at_end(io: BlockingLink[Any], packets: list[bytes]) -> None:
    """Send what ends a block, unless that takes too long."""
    soon = Deadline(REASON_SECONDS_MAX)
    with suppress(Disconnected, TimeoutError):
        for packet in packets:
            io.send(packet, soon)
