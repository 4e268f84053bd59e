"""Requests to other clients, and answers to theirs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from sbus.client.link import READ_PACKETS_MAX
from sbus.client.message_queue import MessageQueue
from sbus.client.replies import no_answer
from sbus.client.subscription import subscribed
from sbus.client.waiting_link import Receiving, WaitingLink
from sbus.errors import PacketRefused
from sbus.protocol.packets import Message, encode_subscribe
from sbus.protocol.request_reply import (
    FAILURE_BYTES_MAX,
    Envelope,
    encode_answer,
    parse_request,
)


async def request(
    io: WaitingLink[Any], key: bytes | str, payload: bytes | str, timeout_seconds: float | None
) -> bytes:
    """Publish a request, and return its answer; see `Connection.request`."""
    try:
        with io.limit(timeout_seconds):
            return await _request(io, key, payload)
    except TimeoutError:
        raise no_answer(key, timeout_seconds) from None


async def _request(io: WaitingLink[Any], key: bytes | str, payload: bytes | str) -> bytes:
    link = io.link
    replies = link.inbox.replies
    with link.order.needed():
        if not replies.key:
            await _prepare_for_answers(io)
        opened = replies.open(link.encoder, key, payload)
        try:
            await io.send(opened.receipt.packet)
            link.inbox.receipts.note_sent(opened.receipt)
            await io.read_until(lambda: opened.is_settled)
            return opened.answer()
        finally:
            replies.close(opened)


async def _prepare_for_answers(io: WaitingLink[Any]) -> None:
    replies = io.link.inbox.replies
    async with io.preparing:
        if not replies.key:
            await io.choose_order()
            await io.ask(io.link.barrier)
            key = replies.new_key(io.link.identity())
            await io.send(encode_subscribe(key))
            replies.key = key


class Request:
    """A request of another client."""

    def __init__(self, io: WaitingLink[Any], envelope: Envelope) -> None:
        self._io = io
        self._envelope = envelope
        self.key = envelope.key
        """What it was published with."""
        self.payload = envelope.payload

    async def reply(self, payload: bytes | str = b"") -> None:
        """Answer it; of several answers the requester gets the first. An answer that is too long
        for a packet fails the request."""
        try:
            await self._answer(self._io.link.encoder.payload(payload), is_failure=False)
        except PacketRefused as refused:
            await self.fail(f"the answer is too long: {refused.text}")

    async def fail(self, text: str) -> None:
        """Say why there is no answer, in at most 4,096 bytes; the requester's call raises
        RequestFailed."""
        reason = text.encode(errors="backslashreplace")[:FAILURE_BYTES_MAX]
        with suppress(PacketRefused):  # the requester's key has a length that no answer can have
            await self._answer(reason, is_failure=True)

    async def _answer(self, payload: bytes, *, is_failure: bool) -> None:
        answer = encode_answer(self._envelope, payload, is_failure=is_failure)
        await self._io.send(self._io.link.encoder.publish(self._envelope.reply_key, answer))


class RequestStream(Receiving[Request]):
    """What `Connection.requests` opens; iterating over it receives requests.

    No gap is raised, as the requester learns that its request was lost; and no refusal of an
    answer, as a requester chooses where its answer goes.
    """

    def __init__(self, io: WaitingLink[Any], queue: MessageQueue[Any]) -> None:
        self._io = io
        self._queue = queue

    async def receive(self) -> Request:
        """The next request. Messages that are none are passed over."""
        if self._queue:
            await self._io.checkpoint()
        while True:
            while not (items := self._queue.take_many(1)):
                self._io.link.inbox.raise_end()
                await self._io.read(READ_PACKETS_MAX)
            envelope = parse_request(items[0]) if isinstance(items[0], Message) else None
            if envelope is not None:
                return Request(self._io, envelope)


@asynccontextmanager
async def answering(io: WaitingLink[Any], packets: list[bytes]) -> AsyncIterator[RequestStream]:
    """Requests under the patterns of these `SUB`, within the block."""
    async with subscribed(io, packets, io.link.new_queue("report")) as queue:
        yield RequestStream(io, queue)
