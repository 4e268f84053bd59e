"""The reaper: takes back what a dead worker left in shared memory.

Its stalled clients hold no publishers, and what it had counted is taken off the accounts. What was
destined to it waits for its successor, unless that comes late: then it holds nobody back any more.
"""

import time

from sbus.broker.front.polled_lock import polled
from sbus.shared import worker_statistics
from sbus.shared.account_book import AccountBook
from sbus.shared.in_flight import InFlight
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
        """Reap a worker. A successor may go on where it was, and others append for that."""
        walked, _ = InFlight(self._memory, worker).walked()
        async with polled(self._memory.lock) as words:
            self._log.reap(words, worker, walked)
            self._stalls.reap(worker)
            self._book.reap(worker, time.monotonic_ns())
            worker_statistics.reap(self._memory.statistics, worker)
        self._wake_all()

    async def release_log(self, worker: int) -> None:
        """The successor of a dead worker comes late: keep nothing for it, so that nobody waits."""
        async with polled(self._memory.lock) as words:
            self._log.reap(words, worker)
        self._wake_all()

    def _wake_all(self) -> None:
        # It may have died between taking another's sleep and waking it, so all look again.
        self._memory.wake((1 << self._memory.workers) - 1)
