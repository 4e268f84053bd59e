"""A connection of an event loop, of trio or asyncio; anyio finds out which of them runs."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

import anyio
from anyio.lowlevel import checkpoint

from sbus.client.link import Link
from sbus.client.message_queue import Item
from sbus.client.waiting_link import WaitingLink


class AsyncLink(WaitingLink[Item]):
    """A link of several tasks."""

    def __init__(self, link: Link[Item]) -> None:
        super().__init__(link)
        link.before_close = anyio.notify_closing
        self.sending = anyio.Lock(fast_acquire=True)
        self.preparing = anyio.Lock()
        self._closed = anyio.Event()
        self._reading = False
        self._news: anyio.Event | None = None
        """Set when the task that reads has read; only if another one waits for that."""

    def close(self) -> None:
        if not self.link.closed:
            self.link.close()
            self._closed.set()

    def limit(self, seconds: float | None) -> AbstractContextManager[object]:
        return anyio.fail_after(seconds)

    def give_up_after(
        self, seconds: float, *, shield: bool = False
    ) -> AbstractContextManager[object]:
        return anyio.move_on_after(seconds, shield=shield)

    async def checkpoint(self) -> None:
        await checkpoint()

    async def wait_readable(self) -> None:
        await self._wait(anyio.wait_readable)

    async def wait_writable(self) -> None:
        await self._wait(anyio.wait_writable)

    async def _wait(self, wait_ready: Callable[[int], Awaitable[None]]) -> None:
        try:
            await wait_ready(self.link.sock.fileno())
        except anyio.ClosedResourceError:
            self.link.inbox.raise_end()

    async def pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._closed.wait()

    async def read(self, packets_max: int) -> None:
        if self._reading:
            self._news = self._news or anyio.Event()
            await self._news.wait()
            return
        self._reading = True
        try:
            await self.read_alone(packets_max)
        finally:
            self._reading = False
            if self._news is not None:
                self._news.set()
                self._news = None

    def read_ahead(self, packets_max: int) -> None:
        if not self._reading:
            super().read_ahead(packets_max)
