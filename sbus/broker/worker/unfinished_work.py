"""Unfinished work: a successor goes on in the total order where its predecessor died.

The predecessor may have died in a walk, in the fan-out of one message, or after its publish batch
had got its place and before it had delivered all of it. What the log has is delivered, each message
to the clients that have not got it. Messages of the batch are in no log and are lost; the shared
memory has their keys, and so who should have received them.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.log_walker import LogWalker
from sbus.broker.worker.router import Router
from sbus.shared.client_slots import ClientSlot
from sbus.shared.in_flight import InterruptedBatch, delivery
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.subscription_table import SubscriptionTable
from sbus.shared.worker_statistics import ROUTE_LOOKUPS


class Interrupted(NamedTuple):
    """What a worker was doing when it died."""

    under_way: int
    """The delivery of the log block at the cursor; 0 if none had begun."""
    step_end: int
    """To where the log is walked before its last step takes effect."""
    batch: InterruptedBatch | None
    arrivals: set[int]
    """Clients that another worker hands over at a log entry that is left to walk."""
    request: int
    """The mark of the last request whose step has its place."""


class UnfinishedWork:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        router: Router,
        log: OrderedLog,
        table: SubscriptionTable,
        walker: LogWalker,
    ) -> None:
        self._lock = context.memory.lock
        self._counts = context.statistics.counts
        self._in_flight = context.in_flight
        self._router = router
        self._log = log
        self._table = table
        self._walker = walker

    def begin(self, slots: Iterable[ClientSlot]) -> Interrupted:
        """Take the predecessor's place, or begin at the present end of the log when that has not
        kept everything for it: then the clients with these slots have lost an unknown number."""
        walked, under_way = self._in_flight.walked()
        with self._lock as words:
            self._table.start(words)
            request = self._in_flight.placed_request(words)
            if not self._log.resume(words, walked):
                for slot in slots:
                    slot.lose_unknown()
                self._log.start(words)
                self._in_flight.start(self._log.cursor)
                return Interrupted(0, self._log.cursor, None, set(), request)
            end = self._log.destined_end(words)
            is_there = self._log.cursor == walked
            if not is_there:
                self._in_flight.begin_block(self._log.cursor)
            step_end = self._in_flight.step_end(words)
            batch = self._in_flight.interrupted_batch(words)
        left, arrivals = self._log.look_ahead(end)
        self._log.entries -= left
        under_way = under_way if is_there else 0
        return Interrupted(under_way, step_end, batch, arrivals, request)

    def finish_walk(self, interrupted: Interrupted, admit_loss: Callable[[int], None]) -> None:
        """Deliver what comes before the predecessor's last step. `admit_loss` is called with the
        slot of the client for which a delivery was under way, in the place of that."""
        if interrupted.under_way:
            self._walker.resume_block(interrupted.under_way, admit_loss)
        self._walker.walk_to(interrupted.step_end)

    def admit_batch(self, batch: InterruptedBatch, admit_loss: Callable[[int], None]) -> None:
        """Admit what is lost of the predecessor's publish batch, in the order of its deliveries:
        `admit_loss` is called with the slot of each recipient."""
        progress = self._in_flight.batch_progress
        self._counts[ROUTE_LOOKUPS] += len(batch.keys)
        for number, key in enumerate(batch.keys):
            for recipient in self._router.look_up(key).recipients:
                slot_at = recipient.slot_at
                place = delivery(number, slot_at)
                if slot_at != batch.but_for and place >= batch.under_way:
                    progress[0] = place
                    admit_loss(slot_at)

    def end_batch(self) -> None:
        """All recipients know what they have lost of the predecessor's publish batch."""
        self._in_flight.end_batch()
