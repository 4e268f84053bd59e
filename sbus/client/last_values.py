"""A service that keeps the newest message of each key, and joining it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from sbus.client.message_queue import MessageQueue
from sbus.client.snapshot import Joining, may_be_lost
from sbus.client.subscription import Patterns, Subscription, subscribed
from sbus.client.value_store import JoinerRequest, ValueStore, requests_of
from sbus.client.waiting_link import WaitingLink
from sbus.errors import ConnectionInterrupted, MessagesUnconfirmed, PacketRefused
from sbus.protocol import controls
from sbus.protocol.codes import PACKETS_LOST
from sbus.protocol.last_values import request_key
from sbus.protocol.packets import SUBSCRIBE_WORD, encode_subscribe

MESSAGES_AT_ONCE = 1024
ROOT = 0
"""The user whose services are trusted besides one's own."""


# -- joining ---------------------------------------------------------------------------------------
@asynccontextmanager
async def joined(
    io: WaitingLink[Any], packet: bytes, uid: int | None, timeout_seconds: float | None
) -> AsyncIterator[Subscription[Any]]:
    """The last values that match this `SUB` and what follows them, within the block; see
    `Connection.last_values`."""
    queue = io.link.new_queue("report")
    messages = io.link.new_queue()
    joining: Joining | None = None
    async with AsyncExitStack() as stack:
        try:
            with io.limit(timeout_seconds):
                await stack.enter_async_context(subscribed(io, [packet], queue))
                await io.ask(io.link.barrier)
                joining = _joining(io, packet, uid, may_wait=timeout_seconds is not None)
                async with io.senders_told():
                    await _join(io, packet, joining, queue, messages)
        except TimeoutError:
            if joining is not None and joining.failures:
                raise next(iter(joining.failures.values())) from None
            raise
        try:
            yield Subscription(io, messages)
        finally:
            io.link.inbox.routes.close(messages)


def _joining(io: WaitingLink[Any], packet: bytes, uid: int | None, *, may_wait: bool) -> Joining:
    link = io.link
    own = link.identity()
    return Joining(
        packet.removeprefix(SUBSCRIBE_WORD),
        own.key,
        uids={own.uid, ROOT} if uid is None else {uid},
        messages_max=link.queue_messages_max,
        bytes_max=link.queue_bytes_max,
        may_wait=may_wait,
    )


async def _join(
    io: WaitingLink[Any],
    packet: bytes,
    joining: Joining,
    queue: MessageQueue[Any],
    messages: MessageQueue[Any],
) -> None:
    """Fill the queue for the program, and have what comes after it go there."""
    routes = io.link.inbox.routes
    own = [encode_subscribe(joining.request_key), encode_subscribe(joining.reply_key)]
    patterns = Patterns(io, own)
    routes.open([packet, *own], queue, with_senders=True)
    try:
        await patterns.subscribe()
        while not joining.is_complete:
            await _ask(io, joining, queue)
        # From here to the end of the block there is no checkpoint.
        for item in queue.take_many(len(queue) or 1):
            joining.feed(item)
        joining.move_to(messages, routes.shown)
        routes.open([packet], messages)
        routes.close(queue)
    finally:
        if not joining.is_complete:
            routes.open([packet], queue)
        await patterns.unsubscribe()


async def _ask(io: WaitingLink[Any], joining: Joining, queue: MessageQueue[Any]) -> None:
    """Ask for a snapshot; returns when it is there, or when it is to be asked for again."""
    inbox = io.link.inbox
    opened = inbox.receipts.open(io.link.encoder.publish(joining.request_key, joining.request()))
    try:
        await io.send(opened.packet)
        inbox.receipts.note_sent(opened)
        while not (joining.is_complete or joining.must_ask):
            await io.read_until(lambda: queue or (opened.result and not joining.has_receipt))
            inbox.raise_errors()
            for item in queue.take_many(MESSAGES_AT_ONCE):
                joining.feed(item)
            if opened.result is not None and not joining.has_receipt:
                joining.feed_receipt(opened.result)
    finally:
        inbox.receipts.close(opened)


# -- serving ---------------------------------------------------------------------------------------
async def serve(io: WaitingLink[Any], patterns: list[bytes], store: ValueStore) -> None:
    """Keep the newest messages and answer joiners; see `Connection.serve_last_values`."""
    queue = io.link.new_queue("report")
    packets = [encode_subscribe(text) for it in patterns for text in (it, request_key(it))]
    await io.send(io.link.control_packet(controls.SENDER_ON, None)[0])
    async with subscribed(io, packets, queue):
        while True:
            items = await _take(io, queue)
            requests = requests_of(items)
            for at, item in enumerate(items):
                if at not in requests:
                    store.feed(item)
                elif requests[at].is_one_too_many:
                    await _answer(io, requests[at], [requests[at].put_off()])
                else:
                    await _answer(io, requests[at], store.answers(requests[at].envelope))


async def _take(io: WaitingLink[Any], queue: MessageQueue[Any]) -> list[Any]:
    """The next items. What was lost on its way to a joiner is no error here, as it asks again."""
    while True:
        try:
            return await io.take_many(queue, MESSAGES_AT_ONCE)
        except MessagesUnconfirmed:
            continue
        except PacketRefused as refused:
            if refused.code != PACKETS_LOST:
                raise


async def _answer(
    io: WaitingLink[Any], request: JoinerRequest, answers: Iterable[tuple[bytes, bytes]]
) -> None:
    """Publish these, as long as somebody receives them."""
    for key, payload in answers:
        try:
            receipt = await io.publish_with_receipt(io.link.encoder.publish(key, payload))
        except (PacketRefused, ConnectionInterrupted) as error:
            if may_be_lost(error):
                await io.send(io.link.encoder.publish(*request.put_off()))
            return
        if (receipt.sent, receipt.waiting) == (0, 0):
            return
