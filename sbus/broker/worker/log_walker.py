"""Walking the log: what other workers have appended is delivered to this worker's clients.

Log blocks that are ordinary are the ordinary step's; from the first one that is not, the rest is
walked here.
"""

import math
import time
from collections.abc import Callable, Iterable

from sbus.broker.delivery.tally import Tally
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.monitor import MessageMonitor
from sbus.broker.worker.ordinary_step import OrdinaryStep
from sbus.broker.worker.router import Router
from sbus.limits import BYTES_PER_UNIT, UNITS_PER_SECOND
from sbus.shared.in_flight import NUMBER_SHIFT, delivery
from sbus.shared.log_block import BLOCK, ENTRY_BYTES, HAND_OVER, TIME_MASK, WalkedBlock
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.worker_statistics import ACCEPTED, ACCEPTED_BYTES, ROUTE_LOOKUPS

_WALK_ENTRIES_PER_LOOK = 16
_WALK_SECONDS_PER_SHARE = 0.002
"""A long walk looks at the clock, and shares its progress, this often."""
_WALK_COST_PER_SHARE = 2_048
"""The same for the ordinary step, which takes about as long for this."""
_PRICED_SECONDS = 0.001
"""Of walking, after which the prices of bytes are noted again."""


class LogWalker:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        router: Router,
        monitor: MessageMonitor,
        log: OrderedLog,
        step: OrdinaryStep,
    ) -> None:
        self._memory = context.memory
        self._worker = context.worker
        self._operations = context.operations
        self._statistics = context.statistics
        self._in_flight = context.in_flight
        self._fan_out_times = context.fan_out_times
        self._origin = context.origin
        self._receipts = context.receipts
        self._router = router
        self.monitor = monitor
        self._log = log
        self._step = step
        self._cost: dict[int, int] = {}
        self._accounts = context.accounts
        self._unpriced_cost: dict[int, int] = {}
        self._unpriced_bytes: dict[int, int] = {}
        self._priced_seconds = 0.0
        self.seconds = 0.0
        """Time spent on walks so far."""

    def take_cost(self) -> dict[int, int]:
        """The cost of walking since the last call, by the publishers' accounts."""
        cost, self._cost = self._cost, {}
        unpriced = self._unpriced_cost
        for account, units in cost.items():
            unpriced[account] = unpriced.get(account, 0) + units
        seconds = self.seconds - self._priced_seconds
        if unpriced and seconds >= _PRICED_SECONDS:
            self._note_prices(seconds)
        return cost

    def _note_prices(self, seconds: float) -> None:
        """Note in the accounts of users what their bytes have cost in this time of walking."""
        bytes_per_unit = self._log.bytes_walked_in(seconds) / sum(self._unpriced_cost.values())
        for account, units in self._unpriced_cost.items():
            price = units * bytes_per_unit / self._unpriced_bytes[account]
            self._accounts[account].log_share.note_price(self._worker, price)
        self._unpriced_cost, self._unpriced_bytes = {}, {}
        self._priced_seconds = self.seconds

    def destined_end(self, words: memoryview) -> int:
        """To where there is something to walk. Under the lock. A successor begins where this worker
        would, if it dies first."""
        before = self._log.cursor
        end = self._log.destined_end(words)
        if self._log.cursor > before:
            self._in_flight.begin_block(self._log.cursor)
        return end

    def walk_to(self, end: int, cost_max: float = math.inf) -> None:
        """Deliver what the log has for this worker's clients, up to `end` or this cost."""
        start = self._log.cursor
        if start < end:
            began_at = time.perf_counter()
            cost = self._walk_ordinary(end, cost_max)
            self._deliver_blocks(self._log.walk(end), cost_max - cost)
            self._in_flight.begin_block(self._log.cursor)
            self._note_walk(self._log.cursor - start, time.perf_counter() - began_at)

    def _walk_ordinary(self, end: int, cost_max: float) -> int:
        """Walk over log blocks while they are ordinary; returns the cost."""
        total = 0
        while not self.monitor.is_watched and self._log.cursor < end:
            piece_max = int(min(cost_max - total, _WALK_COST_PER_SHARE))
            cost = self._step.walk(end, self._cost, self._unpriced_bytes, piece_max)
            total += cost
            if cost < piece_max or total >= cost_max:
                break
            self._in_flight.begin_block(self._log.cursor)
            self._share_progress()
        return total

    def walk_piece(self, piece: bytes) -> None:
        """Deliver what was taken from the log."""
        began_at = time.perf_counter()
        start = self._log.cursor - len(piece)
        walked = self._step.walk_piece(piece, start, self._cost, self._unpriced_bytes)
        if walked < len(piece):
            self._deliver_blocks(self._log.walk_piece(piece[walked:]), math.inf)
        self._in_flight.begin_block(self._log.cursor)
        self._note_walk(len(piece), time.perf_counter() - began_at)

    def resume_block(self, under_way: int, admit_loss: Callable[[int], None]) -> None:
        """Deliver the rest of the log block at the cursor. A predecessor has made the deliveries
        before this one, which is in doubt: its recipient's slot is passed to `admit_loss`. A client
        that was being taken over is taken over again."""
        progress, base = self._in_flight.walk_progress, self._in_flight.block_base()
        for block in self._log.walk(self._log.cursor + 1):
            account = block.publisher.account_place
            self._statistics.counts[ROUTE_LOOKUPS] += len(block.entries)
            for number, (key, packet, number_in_batch) in enumerate(block.entries):
                self._origin.set(block.publisher, block.place + number_in_batch)
                for recipient in self._router.look_up(key).recipients:
                    place = delivery(number, recipient.slot_at)
                    progress[0] = max(base + place, progress[0])
                    if place == under_way and key != HAND_OVER:
                        admit_loss(recipient.slot_at)
                    elif place >= under_way:
                        self._statistics.counts[ACCEPTED] += 1
                        self._statistics.counts[ACCEPTED_BYTES] += len(packet)
                        recipient.deliver(packet, account)
        self._in_flight.begin_block(self._log.cursor)

    def _note_walk(self, walked_bytes: int, seconds: float) -> None:
        self._log.note_pace(walked_bytes, seconds)
        self._operations.record("walk", seconds)
        self.seconds += seconds

    def _deliver_blocks(self, blocks: Iterable[WalkedBlock], cost_max: float) -> None:
        shared_at = time.perf_counter()
        look_up, statistics = self._router.look_up, self._statistics
        recent, progress = self._router.cache.recent, self._in_flight.walk_progress
        deliver = self._fan_out_times.deliver
        walked = total = 0
        origin = self._origin
        for publisher, received_us, block_place, receipt, entries in blocks:
            if total >= cost_max:
                break
            account = publisher.account_place
            origin.set(publisher, block_place)
            before, bytes_before = statistics.counts[ACCEPTED], statistics.counts[ACCEPTED_BYTES]
            deliveries = 0
            walked_bytes = BLOCK.size
            timed_seconds = self._report_walked(entries) if self.monitor.is_watched else 0.0
            place = self._in_flight.begin_block(self._log.position) + 1
            for key, packet, number in entries:
                origin.place = block_place + number
                route = recent.get(key)
                if route is None:
                    began_at = time.perf_counter()
                    route = look_up(key)
                    timed_seconds += time.perf_counter() - began_at
                recipients = route.recipients
                if recipients:
                    deliveries += len(recipients)
                    statistics.counts[ACCEPTED] += len(recipients)
                    statistics.counts[ACCEPTED_BYTES] += len(packet) * len(recipients)
                tally = Tally(recipients) if receipt else None
                deliveries -= deliver(recipients, packet, account, progress, place)
                if tally is not None:
                    self._memory.wake(self._receipts.note_done(receipt, tally.counts()))
                place += 1 << NUMBER_SHIFT
                walked += 1
                walked_bytes += ENTRY_BYTES + len(packet)
                if walked % _WALK_ENTRIES_PER_LOOK:
                    continue
                now = time.perf_counter()
                if now - shared_at > _WALK_SECONDS_PER_SHARE:
                    shared_at = now
                    self._share_progress()
            accepted = statistics.counts[ACCEPTED] - before
            statistics.counts[ROUTE_LOOKUPS] += len(entries)
            latency_us = (time.monotonic_ns() // 1000 - received_us) & TIME_MASK
            statistics.record_latency(latency_us, accepted)
            delivery_bytes = statistics.counts[ACCEPTED_BYTES] - bytes_before
            cost = len(entries) + deliveries + delivery_bytes // BYTES_PER_UNIT
            cost += int(self._operations.own_time(timed_seconds) * UNITS_PER_SECOND)
            total += cost
            self._cost[account] = self._cost.get(account, 0) + cost
            before_bytes = self._unpriced_bytes.get(account, 0)
            self._unpriced_bytes[account] = before_bytes + walked_bytes

    def _report_walked(self, entries: list[tuple[bytes, bytes, int]]) -> float:
        """Tell the monitor of a log block; returns the seconds that took."""
        began_at = time.perf_counter()
        at, numbers = self._log.cursor, self._log.entry_numbers()
        keys = [key for key, _, _ in entries]
        self.monitor.walked(at, self._log.publisher(), numbers, keys, self._router.look_up)
        return time.perf_counter() - began_at

    def _share_progress(self) -> None:
        """In a long walk, make the room that it leaves usable, and show that this worker is
        alive."""
        with self._memory.lock as words:
            wake = self._log.share_cursor(words)
        self._memory.wake(wake)
        self._memory.record_heartbeat(self._worker)
