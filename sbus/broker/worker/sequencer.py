"""The sequencer: a worker's messages get their place in the total order of the bus.

There is one lock for the whole bus, and the order of its critical sections is the total order. A
*step* is one critical section and its effect: a publish batch, a subscription change or a barrier.
It has three parts:

    1. under the lock: check that the routes are current, read the end of the last log block that is
       destined to this worker, and append what other workers need
    2. walk the log to there: everything that came before is delivered
    3. take effect here: deliver the publish batch to this worker's own clients, or change the index

A step never gives up control. So the deliveries of a worker are one sequence, and the critical
sections make the sequences of all workers agree. Whatever caused a message was received before the
message's critical section: it was appended to the log, or delivered here, before it. A subscription
is journalled in the critical section that separates the messages before it from those after it.

The first part also finds out whether a message must wait: for room in the log, for a stalled client
or for its user's rate. Stalled clients are looked for before the lock is taken, because a route can
have many rules. The first message that has to wait is put off, and so are all behind it.
"""

import time
from collections.abc import Mapping

from sbus.broker.delivery.backpressure import ANYBODY, BackpressureRule
from sbus.broker.delivery.tally import Tally
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.log_walker import LogWalker
from sbus.broker.worker.monitor import MessageMonitor
from sbus.broker.worker.ordinary_step import OrdinaryStep, PythonStep, make_ordinary_step
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.presence_steps import PresenceSteps
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.router import Route, Router
from sbus.broker.worker.session import Session
from sbus.broker.worker.table_reader import TableReader
from sbus.broker.worker.unfinished_work import UnfinishedWork
from sbus.broker.worker.wait_queue import FOR_ROOM, Reason, Wait
from sbus.shared.log_block import LogBlock, take_places
from sbus.shared.log_share import LogShare
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import ALIVE, LOG_HEAD
from sbus.shared.subscription_table import SubscriptionTable
from sbus.shared.worker_statistics import MESSAGES_IN, ROUTE_LOOKUPS, ROUTE_MISSES

_LOOKUP_SECONDS_MAX = 0.001
"""For looking the routes of a publish batch up again, or for stalled clients among their rules;
what is left then is put off. Other workers may wait for the lock meanwhile."""


class Sequencer:
    """Of one worker."""

    def __init__(self, context: WorkerContext, router: Router, monitor: MessageMonitor) -> None:
        self._memory = context.memory
        self._lock = context.memory.lock
        self._worker = context.worker
        self._accounts = context.accounts
        self._stalls = context.stalls
        self._in_flight = context.in_flight
        self._receipts = context.receipts
        self._origin = context.origin
        self._statistics = context.statistics
        self._router = router
        self._monitor = monitor
        self._log = OrderedLog(context.memory, context.worker)
        router.watch_entry_steps(self._log.set_entry_steps)
        self._table = SubscriptionTable(context.memory, context.worker)
        self._python_step = PythonStep(context)
        self._step = make_ordinary_step(context, router.cache.recent, self._log, self._table)
        self._walker = LogWalker(context, router, monitor, self._log, self._step)
        self._reader = TableReader(context, router, self._table, self._walker)
        self.read_table = self._reader.read
        self.unfinished = UnfinishedWork(context, router, self._log, self._table, self._walker)
        self.presence = PresenceSteps(
            context, router, self._log, self._table, self._reader, self._walker
        )
        self._misses_shared = 0

    def start(self, record: bytes = b"") -> bool:
        """Take this worker's place in the shared memory, and journal a record there, if any. False
        when there was no room for the record, which must be journalled before all others."""
        with self._lock as words:
            self._log.start(words)
            self._table.start(words)
            self._in_flight.start(self._log.cursor)
            return not record or self._table.append(words, record, edge=True, frees=True)

    # -- steps ---------------------------------------------------------------------------------
    def serve(self, session: Session, cost: int, cost_max: int) -> int:
        """Read a client, unless packets of it are pending, and publish its ordinary messages until
        the cost of its turn is this; returns the cost. Raises OSError."""
        return self._present_step.serve(session, cost, cost_max)

    def poll(
        self, poller: Poller, sessions: Mapping[int, Session], seconds_max: float, cost_max: int
    ) -> list[tuple[int, int]]:
        """As `poller.poll`; meanwhile a client that is the only one ready may be served."""
        return self._present_step.poll(poller, sessions, seconds_max, cost_max)

    @property
    def _present_step(self) -> OrdinaryStep:
        """While messages are watched, none is ordinary."""
        return self._python_step if self._monitor.is_watched else self._step

    def publish(self, batch: PublishBatch) -> Wait | None:
        """Give a client's messages their place in the order, and deliver them here.

        Messages that cannot have a place now are put off; returns what they wait for, if anything.
        """
        self._statistics.counts[ROUTE_LOOKUPS] += len(batch.messages)
        self._put_off_held(batch)
        placed = self._place(batch)
        while placed is None:
            if not self.read_table():
                batch.put_off_from(0)
                return FOR_ROOM
            batch.take_back()
            self._look_up_again(batch)
            self._put_off_held(batch)
            placed = self._place(batch, again=True)
        end, wait = placed
        if wait is not None and wait.reason is not Reason.STALL:
            batch.put_off_from(0)
            return wait
        if batch.receipt is None:  # else the request is pending anyway
            batch.session.share_pending(len(batch.put_off))
        self._walker.walk_to(end)
        if self._monitor.is_watched:
            began_at = time.perf_counter()
            self._monitor.published(batch)
            batch.timed_seconds += time.perf_counter() - began_at
        self._statistics.counts[MESSAGES_IN] += len(batch.messages)
        tally = Tally(batch.recipients) if batch.receipt is not None else None
        if batch.deliveries:
            self._origin.set(batch.session.publisher, batch.place)
            batch.deliveries -= self._step.deliver(batch.messages, batch.session.received_us)
        if batch.receipt is not None and tally is not None:
            self._receipts.note_done(self._receipts.reference(batch.receipt), tally.counts())
        return wait

    def _place(self, batch: PublishBatch, *, again: bool = False) -> tuple[int, Wait | None] | None:
        """The critical section of a publish batch; returns the end of what is destined to this
        worker in the log, and what the messages that were put off wait for.

        None when its routes are not current. Where others subscribe faster than this worker gets
        the lock, it reads the table under the lock when it tries `again`.
        """
        receipt = 0 if batch.receipt is None else self._receipts.reference(batch.receipt)
        log_block = batch.log_block(receipt)
        flight = batch.begin_flight(self._in_flight) if batch.deliveries or again else 0
        with self._lock as words:
            if not self._table.is_current(words):
                if not (again and self._reader.read_rest(words)):
                    return None
                self._look_up_again(batch)
                log_block = batch.log_block(receipt)
            self._table.share_epoch(words)
            end = self._in_flight.note_step(words, self._walker.destined_end(words))
            woken = self._log.share_cursor(words)
            appended_for, wait = self._append(words, batch, log_block)
            if flight and batch.deliveries and (wait is None or wait.reason is Reason.STALL):
                self._in_flight.place_batch(words, flight, len(batch.messages))
            self._log.ask_to_be_woken(words)
        self._memory.wake(woken | appended_for)
        return end, wait

    def _look_up_again(self, batch: PublishBatch) -> None:
        batch.look_up_again(self._router.look_up, _LOOKUP_SECONDS_MAX)
        self._statistics.counts[ROUTE_LOOKUPS] += len(batch.messages)

    def _append(
        self, words: memoryview, batch: PublishBatch, log_block: LogBlock | None
    ) -> tuple[int, Wait | None]:
        """Append what others need; returns the workers to wake, and what the rest waits for."""
        account = batch.session.account
        now_ns = time.monotonic_ns()
        delay_ns = account.publish_delay_ns(now_ns)
        if delay_ns:
            return 0, Wait(Reason.RATE, now_ns + delay_ns)
        woken = 0
        if log_block is not None:
            log_block = self._fitting(words, batch, log_block)
        batch.place = take_places(words, now_ns, len(batch.messages))
        if log_block is not None:
            woken = self._log.append(words, log_block, account.log_share, batch.place)
            if woken < 0:
                return 0, FOR_ROOM
        account.pay_for(len(batch.messages), now_ns)
        if batch.receipt is not None and batch.messages:
            others = 0 if log_block is None else log_block.mask & words[ALIVE]
            mark = self._receipts.place(batch.receipt, others)
            self._in_flight.place_request(words, mark)
        if self._monitor.is_watched:
            block_bytes = 0 if log_block is None else len(log_block.data)
            self._monitor.place(now_ns, words[LOG_HEAD] - block_bytes, words[ALIVE])
        return woken, None if batch.held_by is None else self._begin_holding(batch, now_ns)

    def _fitting(
        self, words: memoryview, batch: PublishBatch, log_block: LogBlock
    ) -> LogBlock | None:
        """Put off what would occupy another worker too long; returns the log block of the rest."""
        parts = self._log.parts_of(words, log_block)
        count = len(batch.messages)
        if parts == 1 or count == 1:
            return log_block
        batch.put_off_from(max(1, count // parts))
        return batch.log_block()

    # -- stalled clients -----------------------------------------------------------------------
    def _put_off_held(self, batch: PublishBatch) -> None:
        """Put off messages from the first on that has to wait for a stalled client.

        This only looks, without the lock: a client that stalls after this look gets one publish
        batch more, and one that has room again is found out under the lock.
        """
        if not self._stalls.any_stalled():
            return
        began_at = 0.0
        last = None
        for index, (_, _, route) in enumerate(batch.messages):
            if route is last or not route.backpressure_rules:
                continue
            last = route
            began_at = began_at or time.perf_counter()
            rule = self._first_stalled(batch.session.account_place, route)
            if rule is not None:
                batch.put_off_from(index, held_by=rule)
                break
            if time.perf_counter() - began_at > _LOOKUP_SECONDS_MAX:
                batch.put_off_from(index + 1)
                break
        if began_at:
            batch.timed_seconds += time.perf_counter() - began_at

    def _first_stalled(self, account_place: int, route: Route) -> BackpressureRule | None:
        """The rule of a stalled client for which publishers with this account may be held."""
        is_stalled = self._stalls.is_stalled
        left: dict[int, int] = {}
        for whose in (account_place, ANYBODY):
            for rule in route.backpressure_rules.get(whose, ()):
                if not is_stalled(rule.place, rule.client):
                    continue
                if rule.account_place not in left:
                    account = self._accounts[rule.account_place]
                    left[rule.account_place] = account.held_left_ns(time.monotonic_ns())
                if left[rule.account_place]:
                    return rule
        return None

    def _begin_holding(self, batch: PublishBatch, now_ns: int) -> Wait | None:
        """Have a publisher wait for a stalled client. Under the lock.

        None when the client has room again or no longer matches, or its user has no time left.
        """
        rule, (_, key, _) = batch.held_by, batch.put_off[0]
        assert rule is not None
        account = self._accounts[rule.account_place]
        left_ns = account.held_left_ns(now_ns)
        if not left_ns or not self._stalls.is_stalled(rule.place, rule.client):
            return None
        if rule not in self._router.look_up(key).backpressure_rules.get(rule.holds, ()):
            return None
        self._stalls.wait(rule.place)
        account.begin_holding(now_ns)
        return Wait(Reason.STALL, now_ns + left_ns, rule.account_place)

    def end_holding(self, account_place: int) -> None:
        """No client of this account's user holds publishers here any more."""
        with self._lock:
            self._accounts[account_place].end_holding(time.monotonic_ns())

    # -- other steps ---------------------------------------------------------------------------
    def hand_over(self, log_block: LogBlock, share: LogShare) -> bool:
        """Append the log entry at which another worker takes over a client of the user with this
        share: what is published behind it is delivered there. False: try again."""
        with self._lock as words:
            woken = self._log.append_if_walked(words, log_block, share)
        self._memory.wake(max(woken, 0))
        return woken >= 0

    def barrier(self) -> None:
        """Deliver everything that has its place in the order before now."""
        with self._lock as words:
            self._table.share_epoch(words)
            end = self._walker.destined_end(words)
            woken = self._log.share_cursor(words)
        self._memory.wake(woken)
        self._walker.walk_to(end)

    def journal_step(self, session: Session, data: bytes, *, edge: bool, frees: bool) -> bool:
        """Journal records of a client's request and walk up to them, before their effect; False
        when there is no room in the table, or none for its user, before the next compaction."""
        mark, share = session.slot.begin_step(), session.account.table_share
        with self._lock.timed as words:
            recorded = self._table.append(words, data, share, edge=edge, frees=frees)
            self._in_flight.place_request(words, mark if recorded else 0)
            end = self._in_flight.note_step(words, self._walker.destined_end(words))
            woken = self._log.share_cursor(words)
        self._memory.wake(woken)
        if recorded:
            self._walker.walk_to(end)
        return recorded

    def journal(self, data: bytes, *, frees: bool = False) -> bool:
        """Journal records whose place in the order does not matter; False as above."""
        with self._lock.timed as words:
            return self._table.append(words, data, edge=True, frees=frees)

    def is_table_full(self, data: bytes) -> bool:
        """Whether a compaction would not make room for these records either."""
        with self._lock as words:
            return self._table.is_full(words, len(data))

    def has_table_reserve(self) -> bool:
        """Whether records that replace others may use the reserve of the table."""
        with self._lock as words:
            return self._table.has_reserve(words)

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing is left to walk or to read, and this worker will be woken when there
        is. The table may have more to read though the routes of a publisher are current."""
        return self._log.is_caught_up and not self._table.has_unread

    def look_again(self) -> None:
        """This worker was woken: `walk_on` finds out why."""
        self._log.is_caught_up = False

    def walk_on(self, cost_max: int) -> None:
        """Walk what is destined here, to its end or until that has cost this much.

        A worker that has published reads on in the table too, though it may sleep before it has
        read all of it: it checks that before it publishes.
        """
        with self._lock as words:
            end = self._walker.destined_end(words)
            piece = b"" if self._monitor.is_watched else self._log.take_piece(words, end)
            woken = self._log.share_cursor(words)
            must_read = self._table.follow(words)
            self._table.share_epoch(words)
            self._log.ask_to_be_woken(words)
        self._memory.wake(woken)
        if piece:
            self._walker.walk_piece(piece)
        if must_read:
            self.read_table()
        else:
            self._walker.walk_to(end, cost_max)

    def take_walking_cost(self) -> dict[int, int]:
        """The cost of walking since the last call, by the publishers' accounts."""
        return self._walker.take_cost()

    @property
    def walking_seconds(self) -> float:
        """Time spent on walks so far."""
        return self._walker.seconds

    def share_statistics(self) -> None:
        """Let other processes see what this worker has counted so far."""
        before, self._misses_shared = self._misses_shared, self._router.cache.misses
        self._statistics.counts[ROUTE_MISSES] += self._misses_shared - before
        self._statistics.share()
