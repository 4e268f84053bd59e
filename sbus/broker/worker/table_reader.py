"""Reading the subscription table: a worker follows what others have journalled.

Routes and members are *current* when all edges have been read. A worker checks that in each
critical section that depends on them; where it is not so, it reads, and tries again.
"""

import time

from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.log_walker import LogWalker
from sbus.broker.worker.members import Members
from sbus.broker.worker.router import Router
from sbus.shared.subscription_table import NAME_KINDS, SubscriptionTable

_RECORDS_PER_READ = 1_000
"""Reading them takes some 4 ms. Then other clients have turns."""


class TableReader:
    """Of one worker."""

    def __init__(
        self, context: WorkerContext, router: Router, table: SubscriptionTable, walker: LogWalker
    ) -> None:
        self._memory = context.memory
        self._own_bit = 1 << context.worker
        self._operations = context.operations
        self._router = router
        self._table = table
        self._walker = walker
        self.members = Members()

    def read(self) -> bool:
        """Read on; whether that was all that there was to read. If not, publishers wait until it
        is, and the sequencer's `walk_on` is to be called again.

        The route cache may forget its routes then. So this worker first walks what was published by
        workers that may still remember theirs.
        """
        was_behind = self._table.has_unread
        with self._memory.lock as words:
            end = self._walker.destined_end(words)
            self._table.note_unread(words)
        self._walker.walk_to(end)
        self._apply()
        if self._table.has_unread:
            return False
        if was_behind:
            self._memory.wake(self._own_bit)
        return True

    def read_rest(self, words: memoryview) -> bool:
        """Read the rest under the lock, if it is little; whether that was all."""
        if not self._table.unread_is_small(words):
            return False
        began_at = time.perf_counter()
        self._table.note_unread(words)
        self._apply()
        self._operations.record("hold", time.perf_counter() - began_at)
        return not self._table.has_unread  # after a worker's death it may be too much

    def _apply(self) -> None:
        for record in self._table.read_changes(_RECORDS_PER_READ):
            if record.kind in NAME_KINDS:
                self.members.apply(record)
            else:
                self._router.apply(record)
