"""A connection of an event loop, of trio or asyncio; anyio finds out which of them runs."""

import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from sbus.client.link import READ_PACKETS_MAX, SEND_RETRY_SECONDS, Link
from sbus.client.message_queue import Item
from sbus.client.waiting_link import WaitingLink
from sbus.errors import SbusError


class AsyncLink(WaitingLink[Item]):
    """A link of several tasks."""

    def __init__(self, link: Link[Item]) -> None:
        super().__init__(link)
        link.before_close = anyio.notify_closing
        link.inbox.refusals.current_task = _current_task()
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
            await wait_for(partial(self._wait, anyio.wait_writable))
        if errors:
            raise errors[0]

    async def _read_when_there_is_room(self) -> None:
        while not self.link.inbox.has_room:
            await self.pause(SEND_RETRY_SECONDS)  # another task may receive
        self.link.inbox.raise_end()
        await self.read(READ_PACKETS_MAX)

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


def _current_task() -> Callable[[], object]:
    """A function that returns the coroutine of the current task of this event loop."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        trio_task: Callable[[], Any] = trio.lowlevel.current_task
        return lambda: trio_task().coro
    import asyncio

    current_task, loop = asyncio.current_task, asyncio.get_running_loop()

    def find() -> object:
        task = current_task(loop)
        return None if task is None else task.get_coro()

    return find
