"""The client library for trio.

No task runs in the background. Whoever needs a packet reads, one task at a time; what it finds
goes to the inbox, and the others look there when it has read. So one task can iterate while
another syncs, answers reach who waits for them, and a task that is cancelled loses nothing: a
packet is received and put in the inbox, or sent, without a checkpoint between.

Every coroutine of the public interface is a checkpoint. Apart from that it is `blocking.py`, with
`await`. Knows nothing of what packets mean.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, Unpack, overload

import trio

from sbus.client.barrier import Identity, Questions
from sbus.client.inbox import InboxStatistics, Item, Losses, Lost
from sbus.client.link import (
    CONNECT_RETRY_SECONDS,
    LAST_WORD_SECONDS_MAX,
    NO_LAST_WORD,
    READ_PACKETS_MAX,
    Link,
    LinkOptions,
    to_bytes,
)
from sbus.errors import Disconnected
from sbus.protocol.packets import Message, encode_publish, encode_subscribe, encode_unsubscribe

if TYPE_CHECKING:
    from sbus.protocol.admin_results import MeResult


@overload
def connect(
    address: str | None = None,
    *,
    losses: Literal["raise"] = "raise",
    **options: Unpack[LinkOptions],
) -> "AbstractAsyncContextManager[Connection[Message]]": ...


@overload
def connect(
    address: str | None = None, *, losses: Literal["report"], **options: Unpack[LinkOptions]
) -> "AbstractAsyncContextManager[Connection[Message | Lost]]": ...


def connect(
    address: str | None = None, *, losses: Losses = "raise", **options: Unpack[LinkOptions]
) -> "AbstractAsyncContextManager[Connection[Any]]":
    """Connect to the bus at `address`; the default is `$SBUS_ADDRESS`, else `/run/sbus.socket`.

    With `losses="report"` a gap in the messages is an item, `Lost`, and not `MessagesLost` raised;
    for the further options see `LinkOptions`. Leaving the block closes the connection.

    Raises AddressError, ConfigurationError, and Disconnected when the bus does not want us.
    """
    return _connected(lambda: Link(address, losses, options))


@asynccontextmanager
async def _connected(prepare: "Callable[[], Link[Item]]") -> "AsyncIterator[Connection[Item]]":
    bus = Connection(prepare())
    try:
        await bus._open()
        yield bus
    finally:
        bus.close()


class Connection(Generic[Item]):
    """A connection to a bus; made by `connect`. It is its own, resumable, iterator.

    Every call but `close` and `statistics` raises Disconnected when the bus has gone, with its
    last word if it had one, and ProtocolViolation when the peer is no bus. Texts are sent as
    UTF-8; a NUL in a key or pattern is a ValueError. Source: PROTOCOL.
    """

    def __init__(self, link: Link[Item]) -> None:
        self._link = link
        self._sending = trio.Lock()
        self._reading = False
        self._news = trio.lowlevel.ParkingLot()

    # -- sending -------------------------------------------------------------------------------

    async def subscribe(self, pattern: bytes | str) -> None:
        """Ask for the messages that match `pattern`, once more than before ("Transport").

        It holds for every message published after a `sync` that follows it.
        """
        await self._send(encode_subscribe(to_bytes(pattern)))

    async def unsubscribe(self, pattern: bytes | str) -> None:
        """Give back one `subscribe` of the same pattern ("Transport")."""
        await self._send(encode_unsubscribe(to_bytes(pattern)))

    async def publish(self, key: bytes | str, payload: bytes | str = b"") -> None:
        """Send a message to whom it concerns; waits while the bus holds this client back.

        Cancelled, it has sent nothing. Raises PacketRefused for more than `packet_bytes_max`
        bytes; what the bus refuses is raised by a later `sync`, `whoami` or `receive`.
        """
        await self._send(encode_publish(to_bytes(key), to_bytes(payload)))

    async def control(self, key: bytes | str, payload: bytes | str | None = None) -> None:
        """Tell the bus itself something ("Flood control"); ConfigurationError in dot dialect."""
        name = to_bytes(key)
        packet = self._link.control_packet(name, None if payload is None else to_bytes(payload))
        await self._send(packet, self._link.questions(name))

    # -- asking --------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Return when the bus has processed everything that was sent before.

        Raises PacketRefused if it refused any of that, and InboxFull when too many messages are
        in front of its answer. In the dot dialect the answer is a message to oneself, and a bus
        that drops messages for this client can drop it: bound the wait there.
        """
        await self._ask(self._link.barrier)

    async def whoami(self) -> Identity:
        """Who the bus takes this client for ("Secret messages"); includes a `sync`.

        ConfigurationError in the dot dialect.
        """
        self._link.must_have_control_messages()
        await self._ask(self._link.barrier)
        identity = self._link.barrier.identity
        assert identity is not None
        return identity

    async def me(self) -> "MeResult":
        """What the bus knows about this client's user: its clients, subscriptions, losses, limits.

        Includes a `sync`. ConfigurationError in the dot dialect. A bus that has no such question
        does not answer: bound the wait.
        """
        self._link.must_have_control_messages()
        await self._ask(self._link.inbox.me)
        return self._link.inbox.me.result()

    # -- receiving -----------------------------------------------------------------------------

    async def receive(self) -> Item:
        """The next message. Cancelled, it has taken none.

        Raises MessagesLost exactly where messages are missing (unless losses are reported) and
        PacketRefused for what this client sent; in both cases the next call goes on.
        """
        await trio.lowlevel.checkpoint()
        inbox = self._link.inbox
        while (item := inbox.take()) is None:
            await self._read(READ_PACKETS_MAX)
        return item

    async def receive_many(self, limit: int = 1024) -> list[Item]:
        """What is there, up to `limit` (at least 1) messages; waits while there is nothing.

        Raises what `receive` raises, in its place: a loss behind other messages comes next time.
        """
        if limit < 1:
            raise ValueError("receive_many takes at least one message")
        await trio.lowlevel.checkpoint()
        inbox = self._link.inbox
        while not (items := inbox.take_many(limit)):
            await self._read(limit)
        return items

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        try:
            return await self.receive()
        except Disconnected:
            if self._link.closed:
                raise StopAsyncIteration from None
            raise

    # -- the connection itself -----------------------------------------------------------------

    @property
    def address(self) -> str:
        return self._link.address

    def statistics(self) -> InboxStatistics:
        return self._link.inbox.statistics()

    def close(self) -> None:
        """Close the connection; iteration in other tasks ends, other calls raise Disconnected.

        What was sent is sent, but only a `sync` tells whether the bus accepted it.
        """
        if self._link.closed:
            return
        trio.lowlevel.notify_closing(self._link.sock.fileno())
        self._link.close()

    # -- waiting -------------------------------------------------------------------------------

    async def _open(self) -> None:
        while not self._link.connect_nowait():  # noqa: ASYNC110 (a full queue sends no event)
            await trio.sleep(CONNECT_RETRY_SECONDS)
        await self._send(self._link.barrier.greeting)

    async def _send(self, packet: bytes, questions: Questions | None = None) -> int:
        """Send when the bus takes it; returns the ticket when it is a question."""
        async with self._sending:
            try:
                while not self._link.send_nowait(packet):
                    await self._wait(trio.lowlevel.wait_writable)
            except BrokenPipeError:
                await self._raise_last_word()
            return questions.asked(packet) if questions else 0

    async def _ask(self, questions: Questions) -> None:
        inbox = self._link.inbox
        ticket = await self._send(questions.question(), questions)
        try:
            while not questions.settled(ticket):
                inbox.raise_end()
                await self._read(READ_PACKETS_MAX)
        finally:
            questions.abandon(ticket)
        inbox.raise_refusal()

    async def _read(self, packets_max: int) -> None:
        """Return when something may have come in, whoever of us has read it."""
        if self._reading:
            await self._news.park()
            return
        self._reading = True
        try:
            if not self._link.read_nowait(packets_max):
                await self._wait(trio.lowlevel.wait_readable)
        finally:
            self._reading = False
            self._news.unpark_all()

    async def _wait(self, wait_ready: Callable[[int], Awaitable[None]]) -> None:
        try:
            await wait_ready(self._link.sock.fileno())
        except trio.ClosedResourceError:
            self._link.inbox.raise_end()

    async def _raise_last_word(self) -> NoReturn:
        """The bus takes nothing more: why that is may be the next that comes in."""
        inbox = self._link.inbox
        with trio.move_on_after(LAST_WORD_SECONDS_MAX):
            while not inbox.ended and inbox.has_room:
                await self._read(READ_PACKETS_MAX)
        inbox.raise_end()
        raise Disconnected(NO_LAST_WORD)
