"""A stream of the messages that match some patterns, on a connection that has several."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, Self

import anyio

from sbus.client.async_link import AsyncLink
from sbus.client.link import REASON_SECONDS_MAX
from sbus.client.message_queue import Item, MessageQueue
from sbus.errors import Disconnected
from sbus.protocol.packets import undone


class Subscription(Generic[Item]):
    """What `Connection.subscription` opens; iterating over it receives messages.

    A gap is where the bus has dropped messages for the connection, as it may concern every
    subscription, or where the program has not taken them soon enough.
    """

    def __init__(self, io: AsyncLink[Item], queue: MessageQueue[Item]) -> None:
        self._io = io
        self._queue = queue

    async def receive(self) -> Item:
        """The next message; raises the same as that of the connection."""
        return await self._io.take(self._queue)

    async def receive_many(self, limit: int = 1024) -> list[Item]:
        """Up to `limit` (at least 1) messages; waits until there is one."""
        return await self._io.take_many(self._queue, limit)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        try:
            return await self.receive()
        except Disconnected:
            if self._io.link.closed:
                raise StopAsyncIteration from None
            raise


@asynccontextmanager
async def subscription(
    io: AsyncLink[Item], packets: list[bytes]
) -> AsyncIterator[Subscription[Item]]:
    """A stream of the messages that match a pattern of these `SUB`, within the block."""
    async with subscribed(io, packets, io.link.new_queue()) as queue:
        yield Subscription(io, queue)


@asynccontextmanager
async def subscribed(
    io: AsyncLink[Any], packets: list[bytes], queue: MessageQueue[Any]
) -> AsyncIterator[MessageQueue[Any]]:
    """Within the block, messages that match a pattern of these `SUB` go to this queue.

    If the bus holds this client back at the end, the patterns may stay subscribed, and messages
    that match no other one are forgotten as they come.
    """
    routes = io.link.inbox.routes
    routes.open(packets, queue)
    undo = []
    try:
        for packet in packets:
            await io.send(packet)
            undo.append(undone(packet))
        await io.ask(io.link.barrier)
        yield queue
    finally:
        routes.close(queue)
        await send_at_end(io, undo)


async def send_at_end(io: AsyncLink[Any], packets: list[bytes]) -> None:
    """Send what ends a block, also when it is cancelled, unless that takes too long."""
    with anyio.move_on_after(REASON_SECONDS_MAX, shield=True), suppress(Disconnected):
        for packet in packets:
            await io.send(packet)
