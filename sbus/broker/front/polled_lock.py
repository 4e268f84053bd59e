"""The lock of the shared memory, for the front, which polls it and never blocks on it.

A worker that was stopped while it held the lock would block every process that waits for it; the
front is the one process that must notice such a worker.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from sbus.shared.shared_memory import MemoryLock

_POLL_SECONDS = 0.000_5
"""Critical sections last microseconds, so a free moment is soon found."""


@asynccontextmanager
async def polled(lock: MemoryLock) -> AsyncIterator[memoryview]:
    """Hold the lock for the body, which must not await anything; gives the control words."""
    while not lock.try_acquire():  # noqa: ASYNC110 (a flock sends no event)
        await trio.sleep(_POLL_SECONDS)
    with lock.timed as words:
        yield words
