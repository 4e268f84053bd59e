"""A connection of an event loop, of trio or asyncio.

It works with the anyio of the program, from version 3.6 on: that of Debian 12 is 3.6.2.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from sbus.client.event_loop import running_event_loop
from sbus.client.link import READ_PACKETS_MAX, SEND_RETRY_SECONDS, Link
from sbus.client.message_queue import Item
from sbus.client.waiting_link import WaitingLink
from sbus.errors import SbusError


class AsyncLink(WaitingLink[Item]):
    """A link of several tasks."""

    def __init__(self, link: Link[Item]) -> None:
        super().__init__(link)
        self._event_loop = running_event_loop()
        link.before_close = self._event_loop.notify_closing
        link.inbox.refusals.current_task = self._event_loop.current_task
        self.sending = _QuickLock()
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
        await self._event_loop.wait_readable(self.link.sock.fileno())

    async def _wait_writable(self) -> None:
        await self._event_loop.wait_writable(self.link.sock.fileno())

    async def wait_to_send(self) -> None:
        errors: list[Exception] = []
        async with anyio.create_task_group() as tasks:

            async def wait_for(ready: Callable[[], Awaitable[None]]) -> None:
                try:
                    await ready()
                except (SbusError, OSError) as error:
                    errors.append(error)
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for, self._read_when_there_is_room)
            await wait_for(self._wait_writable)
        if errors:
            raise errors[0]

    async def _read_when_there_is_room(self) -> None:
        while not self.link.inbox.has_room:
            await self.pause(SEND_RETRY_SECONDS)  # another task may receive
        self.link.inbox.raise_end()
        await self.read(READ_PACKETS_MAX)

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


class _QuickLock(AbstractAsyncContextManager[None]):
    """A lock that yields to other tasks only where one of them has it."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()

    async def __aenter__(self) -> None:
        await checkpoint_if_cancelled()
        try:
            self._lock.acquire_nowait()
        except anyio.WouldBlock:
            await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
