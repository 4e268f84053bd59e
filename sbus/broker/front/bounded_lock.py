"""The lock of the shared memory, for the front: tried, never waited for.

A worker that was stopped while it held the lock would stop whoever waits for it; the front is the
one process that must notice such a worker, so it asks again after a moment instead.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from sbus.shared.shared_memory import MemoryLock

_RETRY_SECONDS = 0.000_5
"""Holds last microseconds, so a free moment is soon found."""


@asynccontextmanager
async def trying(lock: MemoryLock) -> AsyncIterator[memoryview]:
    """Hold the lock for the body, which must not wait for anything; gives the control words."""
    while not lock.try_acquire():  # noqa: ASYNC110 (a flock sends no event)
        await trio.sleep(_RETRY_SECONDS)
    with lock as words:
        yield words
