"""A stream of the messages that match some patterns, on a connection that has several."""

from collections.abc import AsyncIterator
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
    inbox, routes = io.link.inbox, io.link.inbox.routes
    routes.open(packets, queue)
    sent, are_accepted = [], False
    refused_before = inbox.statistics().packets_refused
    try:
        for packet in packets:
            await io.send(packet)
            sent.append(packet)
        await io.ask(io.link.barrier)
        are_accepted = inbox.statistics().packets_refused == refused_before
        yield queue
    finally:
        routes.close(queue)
        if not are_accepted:  # to undo one that was refused would undo another one of its pattern
            sent = [packet for packet in sent if not routes.have(packet)]
        await io.send_at_end(*map(undone, sent))
