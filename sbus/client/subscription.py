"""A stream of the messages that match some patterns, on a connection that has several."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from sbus.client.message_queue import Item, MessageQueue
from sbus.client.waiting_link import Receiving, WaitingLink
from sbus.protocol.packets import undone


class Subscription(Receiving[Item]):
    """What `Connection.subscription` opens; iterating over it receives messages.

    A gap is where the bus has dropped messages for the connection, as it may concern every
    subscription, or where the program has not taken them soon enough.
    """

    def __init__(self, io: WaitingLink[Item], queue: MessageQueue[Item]) -> None:
        self._io: WaitingLink[Item] = io
        self.queue = queue

    async def receive(self) -> Item:
        """The next message; raises the same as that of the connection."""
        return await self._io.take(self.queue)

    async def receive_many(self, limit: int = 1024) -> list[Item]:
        """Up to `limit` (at least 1) messages; waits until there is one."""
        return await self._io.take_many(self.queue, limit)


@asynccontextmanager
async def subscription(
    io: WaitingLink[Item], packets: list[bytes]
) -> AsyncIterator[Subscription[Item]]:
    """A stream of the messages that match a pattern of these `SUB`, within the block."""
    async with _routed(io, packets, io.link.new_queue()) as queue:
        yield Subscription(io, queue)


@asynccontextmanager
async def subscribed(
    io: WaitingLink[Any], packets: list[bytes], queue: MessageQueue[Any]
) -> AsyncIterator[MessageQueue[Any]]:
    """Likewise, for what relies on the one order of the bus: messages go to this queue.

    Raises ConfigurationError if the program has chosen another order.
    """
    with io.link.order.needed():
        await io.choose_order()
        async with _routed(io, packets, queue):
            yield queue


@asynccontextmanager
async def _routed(
    io: WaitingLink[Any], packets: list[bytes], queue: MessageQueue[Any]
) -> AsyncIterator[MessageQueue[Any]]:
    """Within the block, messages that match a pattern of these `SUB` go to this queue.

    If the bus holds this client back at the end, the patterns may stay subscribed, and messages
    that match no other one are forgotten as they come.
    """
    routes = io.link.inbox.routes
    patterns = Patterns(io, packets)
    routes.open(packets, queue)
    try:
        await patterns.subscribe()
        yield queue
    finally:
        routes.close(queue)
        await patterns.unsubscribe()


class Patterns:
    """Those of a block that uses `routes`, until they are undone.

    To undo a `SUB` that was refused would undo another one of its pattern. So where another block,
    or the connection itself, has the same pattern, the bus is asked about each `SUB` alone.
    """

    def __init__(self, io: WaitingLink[Any], packets: list[bytes]) -> None:
        """The routes of the block are not open yet."""
        self._io = io
        self._inbox = io.link.inbox
        shared = [packet for packet in packets if self._inbox.routes.have(packet)]
        own = [packet for packet in packets if packet not in shared]
        self._groups = [*([own] if own else []), *([packet] for packet in shared)]
        self._accepted: list[bytes] = []
        self._unknown: list[bytes] = []
        """Those of which the bus has refused some, or has not replied yet."""

    async def subscribe(self) -> None:
        """Returns when the bus has accepted them, or raises what it has refused."""
        for group in self._groups:
            refused_before = self._inbox.statistics().packets_refused
            await self._io.confirm_together(self._sent_one_by_one(group))
            if self._inbox.statistics().packets_refused == refused_before:
                self._accepted += group
                del self._unknown[len(self._unknown) - len(group) :]
            self._inbox.raise_errors()

    def _sent_one_by_one(self, group: list[bytes]) -> Iterator[bytes]:
        for packet in group:
            yield packet
            self._unknown.append(packet)

    async def unsubscribe(self) -> None:
        """The routes of the block are closed."""
        lone = [packet for packet in self._unknown if not self._inbox.routes.have(packet)]
        await self._io.send_at_end(*map(undone, self._accepted), *map(undone, lone))
