"""The client library for trio and asyncio; anyio finds out which of them runs.

There is no background task. A task that needs a packet reads, one task at a time; the packets go to
the inbox, where the other tasks look when it has read. So one task can iterate while another syncs,
and a cancelled task loses nothing: receiving a packet and putting it in the inbox, or sending one,
includes no checkpoint. Every public coroutine is a checkpoint.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, overload

import anyio
from anyio.lowlevel import checkpoint

from sbus.client.inbox import InboxStatistics, Item, Losses, Lost
from sbus.client.link import (
    CONNECT_RETRY_SECONDS,
    READ_PACKETS_MAX,
    REASON_SECONDS_MAX,
    SEND_RETRY_SECONDS,
    Link,
)
from sbus.client.options import LinkOptions
from sbus.client.requests import Identity, Requests
from sbus.errors import Disconnected
from sbus.protocol.packets import Message

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
    """Connect to the bus at `address`. The default is `$SBUS_ADDRESS`, else the user's own bus at
    `$XDG_RUNTIME_DIR/sbus.socket`, else `/run/sbus.socket`.

    With `losses="report"` a gap in the messages is an item, `Lost`; otherwise it raises
    MessagesLost. For further options see `LinkOptions`. Leaving the block closes the connection.

    Raises AddressError, ConfigurationError, and Disconnected when the bus refuses the connection.
    """
    return _connected(address, losses, options)


@asynccontextmanager
async def _connected(
    address: str | None, losses: Losses, options: LinkOptions
) -> "AsyncIterator[Connection[Any]]":
    bus = Connection[Any](Link(address, losses, options))
    try:
        await bus._open()
        yield bus
    finally:
        bus.close()


class Connection(Generic[Item]):
    """A connection to a bus, made by `connect`; iterating over it receives messages.

    Every call except `close` and `statistics` raises Disconnected when the bus has gone, with the
    reason if there was one, or waits for the next bus if it is to `reconnect`; and it raises
    ProtocolViolation when the peer is not a bus. Text is sent as UTF-8; a NUL in a key or pattern
    is a ValueError, and
    any other mistake in one is PacketRefused. Section names refer to the protocol.
    """

    def __init__(self, link: Link[Item]) -> None:
        self._link = link
        link.before_close = anyio.notify_closing
        self._closed = anyio.Event()
        self._sending = anyio.Lock()
        self._reading = False
        self._news: anyio.Event | None = None
        """Set when the task that reads has read; only if another one waits for that."""

    # -- sending -------------------------------------------------------------------------------

    async def subscribe(self, pattern: bytes | str) -> None:
        """Subscribe to `pattern`, once more than before ("Transport").

        The subscription is in force for every message that is published after a later `sync`.
        """
        await self._send(self._link.encoder.subscribe(pattern))

    async def unsubscribe(self, pattern: bytes | str) -> None:
        """Undo one `subscribe` with the same pattern ("Transport")."""
        await self._send(self._link.encoder.unsubscribe(pattern))

    async def publish(self, key: bytes | str, payload: bytes | str = b"") -> None:
        """Publish a message; waits while the bus holds this client back.

        If it is cancelled, nothing was sent. Raises PacketRefused for more than `packet_bytes_max`
        bytes; a refusal by the bus is raised by a later `sync`, `whoami` or `receive`.
        """
        await self._send(self._link.encoder.publish(key, payload))

    async def control(self, key: bytes | str, payload: bytes | str | None = None) -> None:
        """Send a control message ("Flood control"); ConfigurationError in the dot dialect."""
        packet, requests = self._link.control_packet(key, payload)
        await self._send(packet, requests)

    # -- asking --------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Return when the bus has processed everything that was sent before.

        Raises PacketRefused if it refused any of that, MessagesUnconfirmed if the connection was
        lost meanwhile, and InboxFull when too many messages come before its reply. In the dot
        dialect the reply is a message to oneself, and a bus that drops messages for this client may
        drop it: use a timeout there.
        """
        await self._ask(self._link.barrier)

    async def whoami(self) -> Identity:
        """This client's peer credentials ("Secret messages"); includes a `sync`.

        ConfigurationError in the dot dialect.
        """
        self._link.encoder.must_have_control_messages()
        await self._ask(self._link.barrier)
        return self._link.identity()

    async def me(self) -> "MeResult":
        """What the bus knows about this client's user: clients, subscriptions, losses, limits.

        Includes a `sync`. ConfigurationError in the dot dialect. A bus of an earlier version does
        not reply: use a timeout.
        """
        self._link.encoder.must_have_control_messages()
        await self._ask(self._link.inbox.me)
        return self._link.inbox.me.result()

    # -- receiving -----------------------------------------------------------------------------

    async def receive(self) -> Item:
        """The next message. If it is cancelled, none was taken.

        Raises MessagesLost exactly where messages are missing (unless losses are reported), and
        PacketRefused for packets of this client; in both cases the next call continues.
        """
        await checkpoint()
        inbox = self._link.inbox
        while (item := inbox.take()) is None:
            await self._read(READ_PACKETS_MAX)
        return item

    async def receive_many(self, limit: int = 1024) -> list[Item]:
        """Up to `limit` (at least 1) messages; waits until there is one.

        Raises the same as `receive`; a loss after other messages is raised by the next call.
        """
        await checkpoint()
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

        Only a `sync` before it tells whether the bus accepted what was sent.
        """
        if not self._link.closed:
            self._link.close()
            self._closed.set()

    # -- waiting -------------------------------------------------------------------------------

    async def _open(self) -> None:
        while not self._link.connect_nowait():  # noqa: ASYNC110 (a full queue sends no event)
            await anyio.sleep(CONNECT_RETRY_SECONDS)
        await self._send(self._link.barrier.greeting)
        if self._link.can_reconnect:
            await self._ask(self._link.barrier)  # later, a refusal may concern a packet

    async def _send(self, packet: bytes, requests: Requests | None = None) -> int:
        """Send when the bus has room; returns the ticket if it is a request."""
        async with self._sending:
            while not await self._try_to_send(packet):
                await self._wait(anyio.wait_writable)
            return self._link.note_request(packet, requests)

    async def _try_to_send(self, packet: bytes) -> bool:
        while True:
            try:
                return self._link.send_nowait(packet)
            except BrokenPipeError:
                await self._find_reason()

    async def _ask(self, requests: Requests) -> None:
        while not await self._ask_once(requests):
            pass
        self._link.inbox.raise_errors()

    async def _ask_once(self, requests: Requests) -> bool:
        """Whether the connection was not lost before the reply."""
        link = self._link
        ticket = await self._send(requests.encode(), requests)
        before = link.interruptions
        try:
            while not requests.is_settled(ticket):
                link.inbox.raise_end()
                await self._read(READ_PACKETS_MAX)
        finally:
            requests.abandon(ticket)
        return link.interruptions == before

    async def _read(self, packets_max: int) -> None:
        """Return when something may have arrived, read by this or another task."""
        if self._reading:
            self._news = self._news or anyio.Event()
            await self._news.wait()
            return
        self._reading = True
        try:
            if self._link.is_lost:
                await self._reconnect()
            elif not self._link.read_nowait(packets_max):
                if self._link.is_mark_due:
                    await anyio.sleep(SEND_RETRY_SECONDS)
                else:
                    await self._wait(anyio.wait_readable)
        finally:
            self._reading = False
            if self._news is not None:
                self._news.set()
                self._news = None

    async def _wait(self, wait_ready: Callable[[int], Awaitable[None]]) -> None:
        try:
            await wait_ready(self._link.sock.fileno())
        except anyio.ClosedResourceError:
            self._link.inbox.raise_end()

    async def _find_reason(self) -> None:
        """The bus accepts nothing more; the reason may be the next packet that arrives. Returns
        when the connection has been made again, or raises the reason."""
        link, inbox = self._link, self._link.inbox
        with anyio.move_on_after(REASON_SECONDS_MAX):
            while not (inbox.ended or link.is_lost) and inbox.has_room:
                await self._read(READ_PACKETS_MAX)
        link.give_up()
        while link.is_lost:
            await self._read(READ_PACKETS_MAX)

    async def _reconnect(self) -> None:
        for wait in self._link.reconnect():
            if wait == "readable":
                await self._wait(anyio.wait_readable)
            else:
                with anyio.move_on_after(wait):
                    await self._closed.wait()
