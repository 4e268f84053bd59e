"""The exchange: where one worker's messages get their place in the order of the whole bus.

Every step that the rest of the bus can notice is one hold of the lock, and its place in the order
is that hold: a run of messages, a subscription, a barrier. A step does, in this sequence,

    1. under the lock: check that the routes are current, append what other workers need to the log,
       read how far the log is destined to this worker
    2. walk the log to there: everything that came before
    3. take effect here: deliver the run to this worker's own clients, or change the index

without ever giving up control, so what this worker delivers is one sequence that agrees with the
log, and with the same sequence on every other worker. A run was received before its hold; whatever
caused it was therefore appended, or delivered here, before it. And a subscription is journalled in
the hold whose messages it separates into before and after.

All methods are synchronous. This module does not know sockets, readiness or turns.
"""

import time
from collections import deque
from itertools import islice

from sbus.broker.router import Router
from sbus.broker.session import Run, Session
from sbus.errors import Refusal
from sbus.limits import Limits
from sbus.shared.ordered_log import Block, OrderedLog, build_block
from sbus.shared.segment import Segment
from sbus.shared.subscription_table import (
    CLIENT_GONE,
    SUBSCRIBED,
    UNSUBSCRIBED,
    WORKER_RESET,
    Record,
    SubscriptionTable,
    encode_record,
)

_RECORDS_PER_PIECE = 64
_RECORDS_PER_BEAT = 1_000
"""A worker that reads a large table anew shows that it is alive."""
_WALK_ENTRIES_PER_LOOK = 16
_WALK_SECONDS_PER_SHARE = 0.002
"""A long walk looks at the clock, and shares its cursor this often, so that the room it leaves can
be used; and it shows that this worker is alive."""


class Exchange:
    """One worker's part in the order. `router` is its view of the subscriptions."""

    def __init__(self, segment: Segment, worker: int, router: Router, limits: Limits) -> None:
        self._segment = segment
        self._subscription_bytes_max = limits.client_subscription_bytes_max
        self._worker = worker
        self._router = router
        self._log = OrderedLog(segment, worker)
        self._table = SubscriptionTable(segment, worker)
        self._leaving: deque[Session] = deque()
        self._unrecorded: deque[bytes] = deque()
        """Records that only take back, in the order in which they must be journalled."""
        self._walked_units = 0

    def start(self) -> None:
        """Begin to serve: take the slot over and learn who listens to what."""
        reset = encode_record(Record(WORKER_RESET, True, self._worker, 0))
        with self._segment as words:
            self._log.start(words)
            self._table.start(words)
            if not self._table.append(words, reset, edge=True, frees=True):
                self._unrecorded.append(reset)
        self._read_table()

    # -- steps ---------------------------------------------------------------------------------
    def publish(self, session: Session, run: Run) -> bool:
        """Give a run of one client's messages its place, and deliver it here.

        False when the log has no room: nothing happened, the worker will be woken.
        """
        block = _block_for_others(session, run)
        again = False
        while True:
            wake = appended = 0
            with self._segment as words:
                current = self._table.is_current(words)
                if again and not current and self._table.unread_is_small(words):
                    # Others subscribe faster than this worker gets the lock: read on in the hold.
                    self._apply(self._table.unread(words))
                    block = self._reroute(session, run)
                    current = True
                if current:
                    self._table.share_epoch(words)
                    end = self._log.destined_end(words)
                    wake = self._log.share_cursor(words)
                    if block is not None:
                        appended = self._log.append(words, block)
            if current:
                break
            self._read_table()
            block = self._reroute(session, run)
            again = True
        self._segment.wake(wake)
        if appended < 0:
            return False
        self._segment.wake(appended)
        self._walk(end)
        for packet, _, route in run.messages:
            for outbox in route.recipients:
                outbox.deliver(packet)
        return True

    def barrier(self) -> None:
        """Deliver here everything that has its place before this instant."""
        with self._segment as words:
            self._table.share_epoch(words)
            end = self._log.destined_end(words)
            wake = self._log.share_cursor(words)
        self._segment.wake(wake)
        self._walk(end)

    def subscribe(self, session: Session, pattern: bytes) -> bool:
        """Journal and apply one occurrence of a pattern; False: try again when woken.

        Raises Refusal when the table is full, or the client's own share.
        """
        charge = self._router.subscription_bytes(pattern)
        if session.subscription_bytes + charge > self._subscription_bytes_max:
            raise Refusal("too-many-patterns", "one client has no room for more subscriptions")
        edge = self._router.gain_interest(pattern)
        recorded = False
        try:
            recorded = self._record(Record(SUBSCRIBED, edge, self._worker, session.id, pattern))
        finally:
            if not recorded:
                self._router.lose_interest(pattern)
        if not recorded:
            return False
        session.patterns[pattern] = session.patterns.get(pattern, 0) + 1
        session.subscription_bytes += charge
        self._router.add(pattern, session.outbox)
        return True

    def unsubscribe(self, session: Session, pattern: bytes) -> bool:
        """Take back one occurrence of a pattern that the client has; False: try again."""
        edge = self._router.lose_interest(pattern)
        if not self._record(Record(UNSUBSCRIBED, edge, self._worker, session.id, pattern)):
            self._router.gain_interest(pattern)
            return False
        session.subscription_bytes -= self._router.subscription_bytes(pattern)
        session.patterns[pattern] -= 1
        if not session.patterns[pattern]:
            del session.patterns[pattern]
        self._router.remove(pattern, session.outbox)
        return True

    def forget(self, session: Session) -> None:
        """Drop all subscriptions of a client that has left: `forget_some` does it, bit by bit.

        That the client is gone is journalled first, in a few bytes that fit when nothing else does:
        the next compaction drops its patterns by it, and makes room for the edges.
        """
        if session.patterns:
            self._unrecorded.append(
                encode_record(Record(CLIENT_GONE, False, self._worker, session.id))
            )
            self._leaving.append(session)

    def forget_some(self) -> bool:
        """Take back some patterns of clients that have left; False when none are left.

        Until then they are routes to an outbox that takes nothing, which harms nobody.
        """
        if not self._leaving:
            return False
        session = self._leaving[0]
        for pattern in list(islice(session.patterns, _RECORDS_PER_PIECE)):
            count = session.patterns.pop(pattern)
            for _ in range(count):
                self._router.remove(pattern, session.outbox)
            if self._router.lose_interest(pattern, count):
                end = Record(UNSUBSCRIBED, True, self._worker, session.id, pattern)
                self._unrecorded.append(encode_record(end))
        if not session.patterns:
            self._leaving.popleft()
        self.flush_records()
        return True

    def catch_up(self) -> bool:
        """Walk what is destined here. True when there was nothing, and this worker will be woken
        when there is.

        The table is read on too, but a worker may sleep behind it: it looks before it publishes.
        """
        with self._segment as words:
            end = self._log.destined_end(words)
            wake = self._log.share_cursor(words)
            self._table.share_epoch(words)
            current = self._table.is_current(words)
            asleep = self._log.sleep(words)
        self._segment.wake(wake)
        if not current:
            self._read_table()
        self._walk(end)
        return asleep

    def flush_records(self) -> bool:
        """Journal what only takes back, piece by piece; False when not all of it fits yet."""
        while self._unrecorded:
            piece = list(islice(self._unrecorded, _RECORDS_PER_PIECE))
            with self._segment as words:
                if not self._table.append(words, b"".join(piece), edge=True, frees=True):
                    if len(piece) == 1 or not self._table.append(
                        words, piece[0], edge=True, frees=True
                    ):
                        return False
                    del piece[1:]
            for _ in piece:
                self._unrecorded.popleft()
        return True

    def take_walked_units(self) -> int:
        """Deliveries made by walking since this was last asked."""
        units, self._walked_units = self._walked_units, 0
        return units

    # -- pieces --------------------------------------------------------------------------------
    def _record(self, record: Record) -> bool:
        """Journal one record and walk to the instant of it."""
        if not self.flush_records():
            return False
        data = encode_record(record)
        frees = record.kind == UNSUBSCRIBED
        with self._segment as words:
            recorded = self._table.append(words, data, edge=record.edge, frees=frees)
            full = self._table.is_full(words)
            end = self._log.destined_end(words)
        if not recorded:
            if full and record.kind == SUBSCRIBED:
                raise Refusal("table-full", "the bus has no room for more subscriptions")
            return False
        self._walk(end)
        return True

    def _reroute(self, session: Session, run: Run) -> Block | None:
        run.reroute(self._router.route, session)
        return _block_for_others(session, run)

    def _read_table(self) -> None:
        with self._segment as words:
            ranges = self._table.unread(words)
        self._apply(ranges)

    def _apply(self, ranges: list[tuple[int, int]]) -> None:
        for number, record in enumerate(self._table.read_records(ranges), 1):
            self._router.apply(record)
            if not number % _RECORDS_PER_BEAT:
                self._segment.beat(self._worker)

    def _walk(self, end: int) -> None:
        start = self._log.cursor
        if start >= end:
            return
        began_at = shared_at = time.perf_counter()
        route = self._router.route
        for number, (key, packet) in enumerate(self._log.entries(end), 1):
            recipients = route(key).recipients
            self._walked_units += 1 + len(recipients)
            for outbox in recipients:
                outbox.deliver(packet)
            if number % _WALK_ENTRIES_PER_LOOK:
                continue
            now = time.perf_counter()
            if now - shared_at > _WALK_SECONDS_PER_SHARE:
                shared_at = now
                with self._segment as words:
                    wake = self._log.share_cursor(words)
                self._segment.wake(wake)
                self._segment.beat(self._worker)
        self._log.note_pace(end - start, time.perf_counter() - began_at)


def _block_for_others(session: Session, run: Run) -> Block | None:
    """The part of a run that other workers need, or None."""
    entries = [(route.mask, packet, len(key)) for packet, key, route in run.messages if route.mask]
    return build_block(session.id, entries) if entries else None
