"""A connection that waits when a `Link` cannot do its work at once.

Every call of the client library that waits is written once, as a coroutine above this class. A
subclass adds the way of waiting: `AsyncLink` that of an event loop, and `BlockingLink` one that
stops the thread, in which a coroutine runs to its end at once.

There is no background task. A task that needs a packet reads, one task at a time; the packets go to
the inbox, where the other tasks look when it has read. So one task can iterate while another syncs,
and a cancelled task loses nothing: receiving a packet and putting it in the inbox, or sending one,
includes no checkpoint.

A task that waits to send reads as well, because the bus reads nothing from a client that leaves a
reply or notice unread.

Taking a received item has a checkpoint each time. Sending has one only if it has to wait, and once
in `SEND_PACKETS_MAX` packets: a checkpoint costs more than a packet.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from itertools import chain, islice
from typing import Any, Generic, Self, TypeVar

from sbus.client.inbox import InboxFull
from sbus.client.link import (
    CONNECT_RETRY_SECONDS,
    READ_PACKETS_MAX,
    REASON_SECONDS_MAX,
    SEND_PACKETS_MAX,
    SEND_RETRY_SECONDS,
    Link,
)
from sbus.client.message_queue import Item, MessageQueue
from sbus.client.receipts import OpenReceipt
from sbus.client.reconnecting import reconnect
from sbus.client.requests import Requests
from sbus.errors import Disconnected
from sbus.protocol import controls
from sbus.protocol.packets import encode_control
from sbus.protocol.receipts import Receipt

T = TypeVar("T")


class WaitingLink(ABC, Generic[Item]):
    """A link, and the calls that wait for it."""

    sending: AbstractAsyncContextManager[object]
    """A block in which no other task sends."""
    preparing: AbstractAsyncContextManager[object]
    """A block in which no other task prepares the connection for its first request."""

    def __init__(self, link: Link[Item]) -> None:
        self.link = link
        self._sent = 0
        """Packets, one at a time."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, and wake all who wait."""

    # -- the way of waiting --------------------------------------------------------------------

    @abstractmethod
    def limit(self, seconds: float | None) -> AbstractContextManager[object]:
        """A block that raises TimeoutError when it takes longer."""

    @abstractmethod
    def give_up_after(
        self, seconds: float, *, shield: bool = False
    ) -> AbstractContextManager[object]:
        """A block that ends silently when it takes longer; with `shield` also what is cancelled, or
        has timed out, has this time."""

    @abstractmethod
    async def checkpoint(self) -> None:
        """Other tasks have a turn."""

    @abstractmethod
    async def wait_readable(self) -> None: ...

    @abstractmethod
    async def wait_to_send(self) -> None:
        """Return when the bus may have room, or something was read meanwhile."""

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the connection is closed."""

    @abstractmethod
    async def read(self, packets_max: int) -> None:
        """Return when something may have arrived, read by this or another task. Includes a
        checkpoint."""

    # -- sending -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and greet the bus; returns when it has answered. Raises its refusal."""
        self.link.is_opening = True
        while not self.link.connect_nowait():
            await self.pause(CONNECT_RETRY_SECONDS)
        for packet in self.link.greetings:
            await self.send(packet)
        await self.ask(self.link.barrier)
        self.link.is_opening = False

    async def send(self, packet: bytes, requests: Requests | None = None) -> int:
        """Send when the bus has room; returns the ticket if it is a request."""
        self._sent += 1
        if self._sent % SEND_PACKETS_MAX == 0:
            await self.checkpoint()
        async with self.sending:
            await self._send(packet)
            return self.link.note_request(packet, requests)

    async def send_many(self, packets: Iterator[bytes]) -> None:
        """Send all of these, which are no requests, when the bus has room; others send between."""
        for packet in packets:
            some = chain((packet,), islice(packets, SEND_PACKETS_MAX - 1))
            async with self.sending:
                while (unsent := self.link.send_many_nowait(some)) is not None:
                    await self._send(unsent)
            await self.checkpoint()

    async def choose_order(self) -> None:
        """Have the bus send what waits in its one order, where that is `needed`."""
        packet = self.link.order.missing()
        if packet is not None:
            await self.send(packet)
            self.link.order.note_sent(packet)

    @asynccontextmanager
    async def senders_told(self) -> AsyncIterator[None]:
        """Within the block, the bus tells who has published each message."""
        self.link.expect_senders()
        self.link.senders_needed += 1
        try:
            await self.send(encode_control(controls.SENDER_ON))
            yield
        finally:
            self.link.senders_needed -= 1
            with self._at_end():
                async with self.sending:  # nobody can ask for senders before they are turned off
                    if not self.link.wants_senders:
                        await self._send(encode_control(controls.SENDER_OFF))

    async def send_at_end(self, *packets: bytes, requests: Requests | None = None) -> None:
        """Send what ends a block, also when it is cancelled, unless that takes too long."""
        with self._at_end():
            for packet in packets:
                await self.send(packet, requests)

    @contextmanager
    def _at_end(self) -> Iterator[None]:
        """A block that ends silently when it takes too long, or when nothing more can be sent."""
        with self.give_up_after(REASON_SECONDS_MAX, shield=True), suppress(Disconnected, InboxFull):
            yield

    async def _send_alone(self, packet: bytes, requests: Requests | None = None) -> int:
        """`send`, in a block in which no other task sends."""
        await self._send(packet)
        return self.link.note_request(packet, requests)

    async def _send(self, packet: bytes) -> None:
        while True:
            try:
                if self.link.send_nowait(packet):
                    return
                await self.wait_to_send()
            except BrokenPipeError:
                await self._find_reason()

    async def _find_reason(self) -> None:
        """The bus accepts nothing more; the reason may be the next packet that arrives. Returns
        when the connection has been made again, or raises the reason."""
        link, inbox = self.link, self.link.inbox
        with self.give_up_after(REASON_SECONDS_MAX):
            while not (inbox.ended or link.is_lost) and inbox.has_room:
                await self.read(READ_PACKETS_MAX)
        link.give_up()
        while link.is_lost:
            await self.read(READ_PACKETS_MAX)

    # -- asking --------------------------------------------------------------------------------

    async def ask(self, requests: Requests) -> None:
        """Return when the bus has replied to a new request; raises what it has refused."""
        await self.confirm(requests)
        self.link.inbox.raise_errors()

    async def confirm(self, requests: Requests) -> None:
        """Return when the bus has replied to a new request."""
        while not await self._ask_once(requests):
            pass

    async def confirm_together(self, packets: Iterable[bytes]) -> None:
        """Send these, and return when the bus has processed them. No other task sends between, so
        it is this task that is told what the bus refuses of them."""
        barrier = self.link.barrier
        async with self.sending:
            if self.link.inbox.refusals.others_have_sent:
                await self._send_alone(barrier.encode(), barrier)
            for packet in packets:
                await self._send_alone(packet)
            ticket = await self._send_alone(barrier.encode(), barrier)
        if not await self._is_answered(barrier, ticket, self.link.interruptions):
            await self.confirm(barrier)

    async def _ask_once(self, requests: Requests) -> bool:
        """Whether the connection was not lost before the reply."""
        ticket = await self.send(requests.encode(), requests)
        return await self._is_answered(requests, ticket, self.link.interruptions)

    async def _is_answered(self, requests: Requests, ticket: int, before: int) -> bool:
        """Wait for the reply; whether there were no interruptions after those `before`."""
        try:
            await self.read_until(lambda: requests.is_settled(ticket))
        finally:
            requests.abandon(ticket)
        return self.link.interruptions == before

    async def publish_with_receipt(self, packet: bytes) -> Receipt:
        """Publish the message in this packet, and return what has become of it; see
        `Connection.publish_with_receipt`."""
        opened = await self.ask_receipt(packet)
        try:
            await self.read_until(lambda: opened.result is not None)
        finally:
            self.link.inbox.receipts.close(opened)
        return opened.receipt()

    async def ask_receipt(self, packet: bytes) -> OpenReceipt:
        """Publish the message in this packet. The receipt is to be closed."""
        receipts = self.link.inbox.receipts
        opened = receipts.open(packet)
        try:
            await self.send(opened.packet)
        except BaseException:
            receipts.close(opened)
            raise
        receipts.note_sent(opened)
        return opened

    async def read_until(self, is_done: Callable[[], object]) -> None:
        """Read until this is so. Raises the end of the connection."""
        while not is_done():
            self.link.inbox.raise_end()
            await self.read(READ_PACKETS_MAX)

    # -- receiving -----------------------------------------------------------------------------

    async def take(self, queue: MessageQueue[Item]) -> Item:
        """The next item of this queue; waits until there is one."""
        if queue:
            await self.checkpoint()
        while (item := self.link.inbox.take(queue)) is None:
            await self.read(READ_PACKETS_MAX)
        return item

    async def take_many(self, queue: MessageQueue[Item], limit: int) -> list[Item]:
        """Up to `limit` items of this queue; waits until there is one."""
        if queue:
            await self.checkpoint()
        while not (items := self.link.inbox.take_many(queue, limit)):
            await self.read(limit)
        return items

    def read_ahead(self, packets_max: int) -> None:
        """Read what has arrived, unless another task does so."""
        if not self.link.is_lost:
            self.link.read_nowait(packets_max)

    async def read_alone(self, packets_max: int) -> None:
        """`read`, as the one task that does so."""
        if self.link.is_lost:
            await self._reconnect()
        elif self.link.read_nowait(packets_max):
            await self.checkpoint()
        elif self.link.loss_barrier.is_due:
            await self.pause(SEND_RETRY_SECONDS)
        else:
            await self.wait_readable()
            self.link.read_nowait(packets_max)

    async def _reconnect(self) -> None:
        for wait in reconnect(self.link):
            if wait == "readable":
                await self.wait_readable()
            else:
                await self.pause(wait)


class Receiving(ABC, Generic[T]):
    """Something to receive from with `async for`, which ends when this program closes the
    connection."""

    _io: WaitingLink[Any]

    @abstractmethod
    async def receive(self) -> T:
        """The next one."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except Disconnected:
            if self._io.link.closed:
                raise StopAsyncIteration from None
            raise
