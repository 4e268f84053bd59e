"""The reaper: takes back what a dead worker left in shared memory.

What was destined to it holds nobody back any more, its stalled clients hold no publishers, and what
it had counted is taken off the accounts.
"""

import time

from sbus.broker.front.polled_lock import polled
from sbus.shared import worker_statistics
from sbus.shared.accounts import AccountBook
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable


class Reaper:
    """Reaps the workers of one bus."""

    def __init__(self, memory: SharedMemory, book: AccountBook, stalls: StallTable) -> None:
        self._memory = memory
        self._log = OrderedLog(memory)
        self._book = book
        self._stalls = stalls

    async def reap(self, worker: int) -> None:
        async with polled(self._memory.lock) as words:
            self._log.reap(words, worker)
            self._stalls.reap(worker)
            self._book.reap(worker, time.monotonic_ns())
            worker_statistics.reap(self._memory.statistics, worker)
        # It may have died between taking another's sleep and waking it, so all look again.
        self._memory.wake((1 << self._memory.workers) - 1)
