"""Steps in which clients take names and give them back, each with the messages that tell of it.

One critical section journals the record and appends the messages to the log. So a name is taken at
the place of the message that tells of it: those who watch see the same members at the same place.
This worker's own clients get these messages by the log, too. They are in no publish batch, so the
death of a worker loses none of them.

A message that only the bus may publish has a NUL behind its key in the log. No client can name such
a key, and its route is never cached.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.log_walker import LogWalker
from sbus.broker.worker.members import Members
from sbus.broker.worker.publish_batch import Message
from sbus.broker.worker.router import Route, Router
from sbus.broker.worker.session import Session
from sbus.broker.worker.table_reader import TableReader
from sbus.broker.worker.wait_queue import FOR_ROOM, Reason, Wait
from sbus.protocol.packets import NUL
from sbus.shared.accounts import Account
from sbus.shared.log_block import LogBlock, Publisher, build_log_block, take_places
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import ALIVE, LOG_HEAD
from sbus.shared.subscription_table import Record, SubscriptionTable, encode_record
from sbus.shared.worker_statistics import MESSAGES_IN

CheckMembers = Callable[[Members], None]
"""Raises Refusal if the members do not allow a change."""


class NameChange(NamedTuple):
    """A client takes a name, or gives it back."""

    record: Record
    publisher: Publisher
    """The same client."""
    session: Session | None
    """None if it has gone."""
    account: Account
    messages: Sequence[tuple[bytes, bytes]]
    """Keys and packets; a key that is the bus's own ends with a NUL."""
    is_removal: bool
    check: CheckMembers


class PresenceSteps:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        router: Router,
        log: OrderedLog,
        table: SubscriptionTable,
        reader: TableReader,
        walker: LogWalker,
    ) -> None:
        self._memory = context.memory
        self._own_bit = 1 << context.worker
        self._in_flight = context.in_flight
        self._counts = context.statistics.counts
        self._router = router
        self._log = log
        self._table = table
        self._reader = reader
        self._walker = walker
        self._monitor = walker.monitor
        self.members = reader.members

    def announce(self, change: NameChange) -> Wait | None:
        """Give a change its place in the order; returns what it has to wait for, if anything.
        Raises Refusal."""
        placed = self._place(change)
        while placed is None:
            if not self._reader.read():
                return FOR_ROOM
            placed = self._place(change, again=True)
        end, wait = placed
        if wait is None:
            self._counts[MESSAGES_IN] += len(change.messages)
            if self._monitor.is_watched:
                self._show(change)
            self._walker.walk_to(end)
        return wait

    def _place(self, change: NameChange, *, again: bool = False) -> tuple[int, Wait | None] | None:
        """The critical section; returns to where the log is to be walked then, and what the change
        has to wait for. None when the routes or the members are not current."""
        log_block = self._log_block(change)
        end, appended_for = 0, 0
        with self._memory.lock.timed as words:
            if not self._table.is_current(words):
                if not (again and self._reader.read_rest(words)):
                    return None
                log_block = self._log_block(change)
            change.check(self.members)
            self._table.share_epoch(words)
            woken = self._log.share_cursor(words)
            now_ns = time.monotonic_ns()
            wait = _wait_for_rate(change, now_ns)
            if wait is None:
                appended_for = self._append(words, change, log_block, now_ns)
                if appended_for < 0:
                    appended_for, wait = 0, FOR_ROOM
                else:
                    end = self._in_flight.note_step(words, self._walker.destined_end(words))
        self._memory.wake(woken | appended_for)
        return end, wait

    def _append(
        self, words: memoryview, change: NameChange, log_block: LogBlock | None, now_ns: int
    ) -> int:
        """Append the messages and journal the record; returns the workers to wake, or -1 when
        there is no room."""
        data, frees, account = encode_record(change.record), change.is_removal, change.account
        share = None if frees else account.table_share
        if not self._table.has_room(words, len(data), share, frees=frees):
            return -1
        woken = 0
        place = take_places(words, now_ns, len(change.messages))
        if log_block is not None:
            woken = self._log.append(words, log_block, account.log_share, place)
        if woken >= 0:
            self._table.append(words, data, share, edge=True, frees=frees)
            self.members.apply(change.record)
            account.pay_for(len(change.messages), now_ns)
            if self._monitor.is_watched:
                block_bytes = 0 if log_block is None else len(log_block.data)
                self._monitor.place(now_ns, words[LOG_HEAD] - block_bytes, words[ALIVE])
        return woken

    def _log_block(self, change: NameChange) -> LogBlock | None:
        """The messages that any client receives, if there are any."""
        entries = [
            (route.mask, packet, len(key), number)
            for number, (packet, key, route) in enumerate(self._routed(change))
            if route.mask
        ]
        if not entries:
            return None
        received_us = time.monotonic_ns() // 1000
        return build_log_block(change.publisher, received_us, entries)

    def _routed(self, change: NameChange) -> list[Message]:
        """The messages with their destinations, to which this worker belongs if it has recipients;
        they get the messages in a walk, and nobody gets them before."""
        messages = []
        for key, packet in change.messages:
            route = self._router.look_up(key)
            mask = route.mask | (self._own_bit if route.recipients else 0)
            messages.append((packet, key, Route(mask, ())))
        return messages

    def _show(self, change: NameChange) -> None:
        """Show the messages to those who watch all messages of the bus."""
        routed = self._routed(change)
        shown = [(packet, key.removesuffix(NUL), route) for packet, key, route in routed]
        self._monitor.announced(change.publisher, change.session, shown)

    def barrier(self) -> bool:
        """Deliver everything that has its place before now, and have `members` be as it is there;
        False: try again when woken."""
        end = self._barrier()
        while end is None:
            if not self._reader.read():
                return False
            end = self._barrier(again=True)
        self._walker.walk_to(end)
        return True

    def _barrier(self, *, again: bool = False) -> int | None:
        with self._memory.lock.timed as words:
            if not (self._table.is_current(words) or (again and self._reader.read_rest(words))):
                return None
            self._table.share_epoch(words)
            end = self._walker.destined_end(words)
            woken = self._log.share_cursor(words)
        self._memory.wake(woken)
        return end


def _wait_for_rate(change: NameChange, now_ns: int) -> Wait | None:
    """What a client has to wait for whose user publishes too fast. One that has gone need not."""
    delay_ns = 0 if change.session is None else change.account.publish_delay_ns(now_ns)
    return Wait(Reason.RATE, now_ns + delay_ns) if delay_ns else None
