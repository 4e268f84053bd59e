"""A connection for trio and asyncio: waiting for what a `Link` cannot do at once.

There is no background task. A task that needs a packet reads, one task at a time; the packets go to
the inbox, where the other tasks look when it has read. So one task can iterate while another syncs,
and a cancelled task loses nothing: receiving a packet and putting it in the inbox, or sending one,
includes no checkpoint.

What is received is taken with a checkpoint each time. Sending has one only if it has to wait, and
once in `SEND_PACKETS_MAX` packets: a checkpoint costs more than a packet.
"""

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Generic

import anyio
from anyio.lowlevel import checkpoint

from sbus.client.link import (
    CONNECT_RETRY_SECONDS,
    READ_PACKETS_MAX,
    REASON_SECONDS_MAX,
    SEND_PACKETS_MAX,
    SEND_RETRY_SECONDS,
    Link,
)
from sbus.client.message_queue import Item, MessageQueue
from sbus.client.requests import Requests


class AsyncLink(Generic[Item]):
    """A link of an event loop."""

    def __init__(self, link: Link[Item]) -> None:
        self.link = link
        link.before_close = anyio.notify_closing
        self._closed = anyio.Event()
        self._sending = anyio.Lock(fast_acquire=True)
        self._sent = 0
        """Packets, one at a time."""
        self._reading = False
        self._news: anyio.Event | None = None
        """Set when the task that reads has read; only if another one waits for that."""

    def close(self) -> None:
        """Close the connection, and wake every task that waits."""
        if not self.link.closed:
            self.link.close()
            self._closed.set()

    async def open(self) -> None:
        """Connect, and greet the bus."""
        while not self.link.connect_nowait():  # noqa: ASYNC110 (a full queue sends no event)
            await anyio.sleep(CONNECT_RETRY_SECONDS)
        for packet in self.link.greetings:
            await self.send(packet)
        if self.link.can_reconnect:
            await self.ask(self.link.barrier)  # later, a refusal may concern a packet

    async def send(self, packet: bytes, requests: Requests | None = None) -> int:
        """Send when the bus has room; returns the ticket if it is a request."""
        self._sent += 1
        if self._sent % SEND_PACKETS_MAX == 0:
            await checkpoint()
        async with self._sending:
            while not await self._try_to_send(packet):
                await self._wait(anyio.wait_writable)
            return self.link.note_request(packet, requests)

    async def send_many(self, packets: Iterator[bytes]) -> None:
        """Send all of these, which are no requests, when the bus has room; others send between."""
        while some := list(islice(packets, SEND_PACKETS_MAX)):
            left = iter(some)
            async with self._sending:
                while (packet := self.link.send_many_nowait(left)) is not None:
                    while not await self._try_to_send(packet):
                        await self._wait(anyio.wait_writable)
            await checkpoint()

    async def _try_to_send(self, packet: bytes) -> bool:
        while True:
            try:
                return self.link.send_nowait(packet)
            except BrokenPipeError:
                await self._find_reason()

    async def ask(self, requests: Requests) -> None:
        """Return when the bus has replied to a new request."""
        while not await self._ask_once(requests):
            pass
        self.link.inbox.raise_errors()

    async def _ask_once(self, requests: Requests) -> bool:
        """Whether the connection was not lost before the reply."""
        link = self.link
        ticket = await self.send(requests.encode(), requests)
        before = link.interruptions
        try:
            while not requests.is_settled(ticket):
                link.inbox.raise_end()
                await self.read(READ_PACKETS_MAX)
        finally:
            requests.abandon(ticket)
        return link.interruptions == before

    async def take(self, queue: MessageQueue[Item]) -> Item:
        """The next item of this queue; waits until there is one."""
        if queue:
            await checkpoint()
        while (item := self.link.inbox.take_from(queue)) is None:
            await self.read(READ_PACKETS_MAX)
        return item

    async def take_many(self, queue: MessageQueue[Item], limit: int) -> list[Item]:
        """Up to `limit` items of this queue; waits until there is one."""
        if queue:
            await checkpoint()
        while not (items := self.link.inbox.take_many_from(queue, limit)):
            await self.read(limit)
        return items

    async def read(self, packets_max: int) -> None:
        """Return when something may have arrived, read by this or another task. Includes a
        checkpoint."""
        if self._reading:
            self._news = self._news or anyio.Event()
            await self._news.wait()
            return
        self._reading = True
        try:
            if self.link.is_lost:
                await self._reconnect()
            elif self.link.read_nowait(packets_max):
                await checkpoint()
            elif self.link.is_mark_due:
                await anyio.sleep(SEND_RETRY_SECONDS)
            else:
                await self._wait(anyio.wait_readable)
                self.link.read_nowait(packets_max)
        finally:
            self._reading = False
            if self._news is not None:
                self._news.set()
                self._news = None

    def read_ahead(self, packets_max: int) -> None:
        """Read what has arrived, unless another task does so."""
        if not (self._reading or self.link.is_lost):
            self.link.read_nowait(packets_max)

    async def _wait(self, wait_ready: Callable[[int], Awaitable[None]]) -> None:
        try:
            await wait_ready(self.link.sock.fileno())
        except anyio.ClosedResourceError:
            self.link.inbox.raise_end()

    async def _find_reason(self) -> None:
        """The bus accepts nothing more; the reason may be the next packet that arrives. Returns
        when the connection has been made again, or raises the reason."""
        link, inbox = self.link, self.link.inbox
        with anyio.move_on_after(REASON_SECONDS_MAX):
            while not (inbox.ended or link.is_lost) and inbox.has_room:
                await self.read(READ_PACKETS_MAX)
        link.give_up()
        while link.is_lost:
            await self.read(READ_PACKETS_MAX)

    async def _reconnect(self) -> None:
        for wait in self.link.reconnect():
            if wait == "readable":
                await self._wait(anyio.wait_readable)
            else:
                with anyio.move_on_after(wait):
                    await self._closed.wait()
