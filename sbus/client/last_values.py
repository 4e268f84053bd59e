"""A service that keeps the newest message of each key, and joining it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from sbus.client.message_queue import MessageQueue
from sbus.client.snapshot import Joining
from sbus.client.subscription import Subscription, subscribed
from sbus.client.value_store import ValueStore
from sbus.client.waiting_link import WaitingLink
from sbus.protocol.last_values import request_key
from sbus.protocol.packets import SUBSCRIBE_WORD, encode_subscribe, undone

MESSAGES_AT_ONCE = 1024


@asynccontextmanager
async def joined(
    io: WaitingLink[Any], packet: bytes, timeout_seconds: float | None
) -> AsyncIterator[Subscription[Any]]:
    """The last values that match this `SUB` and what follows them, within the block; see
    `Connection.last_values`."""
    queue = io.link.new_queue("report")
    messages = io.link.new_queue()
    async with AsyncExitStack() as stack:
        with io.limit(timeout_seconds):
            await stack.enter_async_context(subscribed(io, [packet], queue))
            await _join(io, packet, queue, messages)
        try:
            yield Subscription(io, messages)
        finally:
            io.link.inbox.routes.close(messages)


async def _join(
    io: WaitingLink[Any], packet: bytes, queue: MessageQueue[Any], messages: MessageQueue[Any]
) -> None:
    """Fill the queue for the program, and have what comes after it go there."""
    link = io.link
    await io.ask(link.barrier)
    own_key, messages_max = link.identity().key, link.queue_messages_max
    joining = Joining(packet.removeprefix(SUBSCRIBE_WORD), own_key, messages_max=messages_max)
    own = [encode_subscribe(joining.request_key), encode_subscribe(joining.reply_key)]
    link.inbox.routes.open([packet, *own], queue)
    try:
        for subscription in own:
            await io.send(subscription)
        while not joining.is_complete:
            if joining.must_ask:
                await io.send(link.encoder.publish(joining.request_key, joining.request()))
            for item in await io.take_many(queue, MESSAGES_AT_ONCE):
                joining.feed(item)
        # From here to the end of the block there is no checkpoint.
        for item in queue.take_many(len(queue) or 1):
            joining.feed(item)
        joining.move_to(messages)
        link.inbox.routes.open([packet], messages)
        link.inbox.routes.close(queue)
    finally:
        await io.send_at_end(*map(undone, own))


async def serve(io: WaitingLink[Any], patterns: list[bytes], store: ValueStore) -> None:
    """Keep the newest messages and answer joiners; see `Connection.serve_last_values`."""
    queue = io.link.new_queue("report")
    packets = [encode_subscribe(text) for it in patterns for text in (it, request_key(it))]
    async with subscribed(io, packets, queue):
        while True:
            for item in await io.take_many(queue, MESSAGES_AT_ONCE):
                for key, payload in store.feed(item):
                    await io.send(io.link.encoder.publish(key, payload))
