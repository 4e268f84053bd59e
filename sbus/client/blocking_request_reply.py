"""Requests to other clients, and answers to theirs, for programs without an event loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from sbus.client.blocking_link import BlockingLink, Deadline
from sbus.client.blocking_subscription import subscribed
from sbus.client.link import READ_PACKETS_MAX
from sbus.client.message_queue import MessageQueue
from sbus.client.replies import no_answer
from sbus.errors import Disconnected
from sbus.protocol.packets import Message
from sbus.protocol.request_reply import Envelope, encode_answer, parse_request


def request(
    io: BlockingLink[Any], key: bytes | str, payload: bytes | str, timeout_seconds: float | None
) -> bytes:
    """Publish a request, and return its answer; see `Connection.request`."""
    try:
        with io.call:
            return _request(io, key, payload, Deadline(timeout_seconds))
    except TimeoutError:
        raise no_answer(key, timeout_seconds) from None


def _request(
    io: BlockingLink[Any], key: bytes | str, payload: bytes | str, deadline: Deadline
) -> bytes:
    link = io.link
    replies = link.inbox.replies
    if not replies.key:
        io.ask(link.barrier, deadline)
        try:
            io.send(replies.subscribe(link.identity()), deadline)
        except BaseException:
            replies.key = b""
            raise
    opened = replies.open(link.encoder, key, payload)
    try:
        io.send(opened.receipt.packet, deadline)
        while not opened.is_settled:
            link.inbox.raise_end()
            io.read(READ_PACKETS_MAX, deadline)
        return opened.answer()
    finally:
        replies.close(opened)


class Request:
    """A request of another client."""

    def __init__(self, io: BlockingLink[Any], envelope: Envelope) -> None:
        self._io = io
        self._envelope = envelope

    @property
    def key(self) -> bytes:
        """What it was published with."""
        return self._envelope.key

    @property
    def payload(self) -> bytes:
        return self._envelope.payload

    def reply(self, payload: bytes | str = b"", *, timeout_seconds: float | None = None) -> None:
        """Answer it; of several answers the requester gets the first."""
        self._answer(payload, Deadline(timeout_seconds), is_failure=False)

    def fail(self, text: str, *, timeout_seconds: float | None = None) -> None:
        """Say why there is no answer; the requester's call raises RequestFailed."""
        self._answer(text, Deadline(timeout_seconds), is_failure=True)

    def _answer(self, payload: bytes | str, deadline: Deadline, *, is_failure: bool) -> None:
        encoder = self._io.link.encoder
        answer = encode_answer(self._envelope, encoder.payload(payload), is_failure=is_failure)
        self._io.send(encoder.publish(self._envelope.reply_key, answer), deadline)


class RequestStream:
    """What `Connection.requests` opens; iterating over it receives requests.

    No gap is raised, as the requester learns that its request was lost; and no refusal of an
    answer, as a requester chooses where its answer goes.
    """

    def __init__(self, io: BlockingLink[Any], queue: MessageQueue[Any]) -> None:
        self._io = io
        self._queue = queue

    def receive(self, *, timeout_seconds: float | None = None) -> Request:
        """The next request. Messages that are none are passed over."""
        deadline = Deadline(timeout_seconds)
        with self._io.call:
            while True:
                while not (items := self._queue.take_many(1)):
                    self._io.link.inbox.raise_end()
                    self._io.read(READ_PACKETS_MAX, deadline)
                envelope = parse_request(items[0]) if isinstance(items[0], Message) else None
                if envelope is not None:
                    return Request(self._io, envelope)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Request:
        try:
            return self.receive()
        except Disconnected:
            if self._io.link.closed:
                raise StopIteration from None
            raise


@contextmanager
def answering(
    io: BlockingLink[Any], packets: list[bytes], deadline: Deadline
) -> Iterator[RequestStream]:
    """Requests under the patterns of these `SUB`, within the block."""
    with subscribed(io, packets, io.link.new_queue("report"), deadline) as queue:
        yield RequestStream(io, queue)
