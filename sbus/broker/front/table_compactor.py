"""The table compactor: rewrites the subscription table when a worker finds that it has grown.

It does so piece by piece between other tasks of the front, and holds the lock only at the start and
at the end.
"""

import os

import trio

from sbus.broker.front.polled_lock import polled
from sbus.shared.compaction import Compaction
from sbus.shared.shared_memory import COMPACTION_WANTED, TABLE_TAIL, SharedMemory
from sbus.shared.subscription_table import all_have_read

_READERS_RETRY_SECONDS = 0.01


class TableCompactor:
    """Of one bus."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    async def run(self) -> None:
        """Compact the table whenever that is wanted, for ever."""
        eventfd = self._memory.eventfds[self._memory.workers]
        while True:
            await trio.lowlevel.wait_readable(eventfd)
            os.eventfd_read(eventfd)
            compaction = await self._begin()
            if compaction is not None:
                while compaction.step():
                    await trio.lowlevel.checkpoint()
                await self._finish(compaction)
                self._wake_workers()

    async def _begin(self) -> Compaction | None:
        """Begin once all workers have read the table; None when nobody wants that any more."""
        while True:
            async with polled(self._memory.lock) as words:
                if not words[COMPACTION_WANTED]:
                    return None
                if all_have_read(self._memory, words):
                    return Compaction(self._memory, words)
            self._wake_workers()
            await trio.sleep(_READERS_RETRY_SECONDS)

    async def _finish(self, compaction: Compaction) -> None:
        """Take over what was journalled meanwhile, until nothing new has come in between."""
        while True:
            async with polled(self._memory.lock) as words:
                if compaction.finish(words):
                    return
                tail = words[TABLE_TAIL]
            compaction.copy_journal(tail)

    def _wake_workers(self) -> None:
        self._memory.wake((1 << self._memory.workers) - 1)
