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


async def keep_table_compact(memory: SharedMemory) -> None:
    """Compact the table whenever that is wanted, for ever."""
    eventfd = memory.eventfds[memory.workers]
    while True:
        await trio.lowlevel.wait_readable(eventfd)
        os.eventfd_read(eventfd)
        compaction = await _begin(memory)
        if compaction is not None:
            while compaction.step():
                await trio.lowlevel.checkpoint()
            await _finish(memory, compaction)
            _wake_workers(memory)


async def _begin(memory: SharedMemory) -> Compaction | None:
    """Begin once all workers have read the table; None when that is not wanted any more."""
    while True:
        async with polled(memory.lock) as words:
            if not words[COMPACTION_WANTED]:
                return None
            if all_have_read(memory, words):
                return Compaction(memory, words)
        _wake_workers(memory)
        await trio.sleep(_READERS_RETRY_SECONDS)


async def _finish(memory: SharedMemory, compaction: Compaction) -> None:
    """Take over what was journalled meanwhile, until nothing new has come in between."""
    while True:
        async with polled(memory.lock) as words:
            if compaction.finish(words):
                return
            tail = words[TABLE_TAIL]
        while compaction.copy_journal(tail):
            await trio.lowlevel.checkpoint()


def _wake_workers(memory: SharedMemory) -> None:
    memory.wake((1 << memory.workers) - 1)
