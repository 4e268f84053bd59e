"""The event loop that runs, of trio or asyncio: its current task, and waits for a descriptor.

anyio can wait for a descriptor as well, but wakes the task that waits for one that is to be closed
only from its version 4.10 on. Programs bring their own anyio, and that of a distribution is older.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import anyio


class EventLoop(Protocol):
    """At most one task at a time waits for each direction of a descriptor."""

    def current_task(self) -> object:
        """The coroutine of the current task, if there is one."""

    async def wait_readable(self, fd: int) -> None:
        """Return when the descriptor is readable, or is to be closed."""

    async def wait_writable(self, fd: int) -> None: ...

    def notify_closing(self, fd: int) -> None:
        """Wake the tasks that wait for the descriptor: it is to be closed."""


def running_event_loop() -> EventLoop:
    trio: Any = sys.modules.get("trio")
    with suppress(RuntimeError):  # another event loop runs
        if trio is not None and trio.lowlevel.current_task() is not None:
            return _Trio(trio)
    return _Asyncio()


class _Trio:
    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self.notify_closing: Callable[[int], None] = trio.lowlevel.notify_closing

    def current_task(self) -> object:
        return self._trio.lowlevel.current_task().coro

    async def wait_readable(self, fd: int) -> None:
        with suppress(self._trio.ClosedResourceError):
            await self._trio.lowlevel.wait_readable(fd)

    async def wait_writable(self, fd: int) -> None:
        with suppress(self._trio.ClosedResourceError):
            await self._trio.lowlevel.wait_writable(fd)


class _Asyncio:
    def __init__(self) -> None:
        import asyncio  # it is large, and programs of trio do without it

        self._loop = asyncio.get_running_loop()
        self._task_of: Callable[..., asyncio.Task[Any] | None] = asyncio.current_task
        self._waits: dict[Callable[[int], bool], anyio.Event] = {}
        """The waits that go on, by the function that removes the descriptor from the loop."""

    def current_task(self) -> object:
        task = self._task_of(self._loop)
        return None if task is None else task.get_coro()

    async def wait_readable(self, fd: int) -> None:
        await self._wait(fd, self._loop.add_reader, self._loop.remove_reader)

    async def wait_writable(self, fd: int) -> None:
        await self._wait(fd, self._loop.add_writer, self._loop.remove_writer)

    async def _wait(self, fd: int, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
        ready = anyio.Event()
        add(fd, ready.set)
        self._waits[remove] = ready
        try:
            await ready.wait()
        finally:
            # Otherwise the descriptor was closed, and its number may be another socket's by now.
            if self._waits.get(remove) is ready:
                del self._waits[remove]
                remove(fd)

    def notify_closing(self, fd: int) -> None:
        while self._waits:
            remove, ready = self._waits.popitem()
            remove(fd)
            ready.set()
