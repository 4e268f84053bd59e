"""The statistics collector: figures about the bus, its workers and its users, from shared memory.

It waits for no worker, and for the lock no longer than a moment, so figures are recent even while a
worker hangs. Rates are from samples, one each second.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import trio

from sbus.broker.front.load_meter import LoadMeter
from sbus.broker.front.placement import WorkerLoad
from sbus.broker.front.polled_lock import polled
from sbus.broker.front.supervised_worker import SupervisedWorker
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.protocol.admin_results import (
    Fill,
    Latency,
    LongestOperation,
    Rates,
    Traffic,
    UserReport,
    WorkerReport,
    total,
)
from sbus.protocol.codes import DROP_REASONS, PACKET_CODES
from sbus.shared import worker_statistics as counter
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    BLOCKING_CLIENTS,
    BUS,
    DROPPED,
    MATCH_STEPS,
    SOCKET_BYTES,
    SUBSCRIPTION_BYTES,
    SUBSCRIPTIONS,
    WAITING_BYTES,
)
from sbus.shared.operation_times import longest_operations
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import TABLE_TAIL, SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.unix.process_usage import process_usage

_SAMPLE_SECONDS = 1.0
_SAMPLES = 11
"""Rates are over the last ten seconds."""
_RATED = ("messages_in", "bytes_in", "delivered", "delivered_bytes", "discarded", "refused")
_SILENT_SECONDS = 3.0
"""Three heartbeats."""
_LOCK_SECONDS_MAX = 0.05
"""A worker that hangs may have the lock."""

Words = Sequence[int]


class StatisticsCollector:
    """Collects the figures of one bus."""

    def __init__(
        self,
        memory: SharedMemory,
        supervisor: Supervisor,
        meter: LoadMeter,
        user_limits: EffectiveUserLimits,
        book: AccountBook,
        stalls: StallTable,
    ) -> None:
        self._memory = memory
        self._supervisor = supervisor
        self._meter = meter
        self._book = book
        self._stalls = stalls
        self._user_limits = user_limits
        self._log = OrderedLog(memory)
        self._samples: deque[tuple[float, list[Words]]] = deque(maxlen=_SAMPLES)

    async def run(self) -> None:
        """Sample the counters for ever, for rates."""
        while True:
            self._samples.append((time.monotonic(), self._counters()))
            await trio.sleep(_SAMPLE_SECONDS)

    def _counters(self) -> list[Words]:
        return [
            counter.counters_of(self._memory.statistics, worker).tolist()
            for worker in range(self._memory.workers)
        ]

    # -- workers and the bus -------------------------------------------------------------------
    def workers(self) -> list[WorkerReport]:
        """Every worker's state, traffic and rates."""
        reports = zip(self._supervisor.workers, self._counters(), self._meter.loads(), strict=True)
        return [self._report(worker, words, load) for worker, words, load in reports]

    def _report(self, worker: SupervisedWorker, words: Words, load: WorkerLoad) -> WorkerReport:
        silence_seconds = self._memory.silence_seconds(worker.number)
        state: Literal["starting", "serving", "silent"] = "serving"
        if not worker.is_serving:
            state = "starting"
        elif silence_seconds > _SILENT_SECONDS:
            state = "silent"
        usage = process_usage(worker.pid)
        traffic = _traffic(words, self._book[BUS].worker_use(SUBSCRIPTIONS, worker.number))
        return WorkerReport(
            worker=worker.number,
            pid=worker.pid,
            state=state,
            started_at=time.time() - (time.monotonic() - worker.forked_at),
            deaths=worker.deaths,
            silence_seconds=silence_seconds,
            cpu_seconds=usage.cpu_seconds,
            busy_share=load.busy_share,
            memory_bytes=usage.memory_bytes,
            clients=sum(load.clients.values()),
            traffic=traffic,
            rates=self._rates(traffic, lambda sample: sample[worker.number]),
        )

    def totals(self) -> tuple[Traffic, Rates]:
        """The same of all workers together."""
        traffic = _traffic(_sum(self._counters()), self._book[BUS].use(SUBSCRIPTIONS))
        return traffic, self._rates(traffic, _sum)

    def _rates(self, now: Traffic, select: Callable[[list[Words]], Words]) -> Rates:
        """Averages since the oldest sample; `select` takes the same counters from it."""
        if not self._samples:
            return Rates(**dict.fromkeys(Rates.__struct_fields__, 0.0))
        sampled_at, sample = self._samples[0]
        before = _traffic(select(sample), 0)
        seconds = max(time.monotonic() - sampled_at, 1e-3)
        rates = {
            f"{name}_per_second": max(0, total(now, name) - total(before, name)) / seconds
            for name in _RATED
        }
        return Rates(window_seconds=seconds, **rates)

    async def fills(self) -> tuple[Fill | None, Fill | None]:
        """How full the log and the table are; None each where others have the lock all the time."""
        with trio.move_on_after(_LOCK_SECONDS_MAX):
            async with polled(self._memory.lock) as words:
                log = self._log.statistics(words)
                table_bytes = words[TABLE_TAIL]
            table = Fill(table_bytes, self._memory.arena_bytes)
            return Fill(log.used_bytes, log.size_bytes), table
        return None, None

    def longest_operations(self) -> list[LongestOperation]:
        """Of each process and each kind."""
        processes = [*map(str, range(self._memory.workers)), "front"]
        return [
            LongestOperation(
                process=process,
                operation=longest.kind,
                seconds=longest.seconds,
                cpu_seconds=longest.cpu_seconds,
            )
            for place, process in enumerate(processes)
            for longest in longest_operations(self._memory.operations, place)
        ]

    def stalled_clients(self) -> int:
        """Clients for which publishers are held back now, or would be."""
        return self._stalls.count()

    # -- users ---------------------------------------------------------------------------------
    def users(self, after: int, size: int) -> list[UserReport]:
        """Up to `size` users that have an account, by their ids, behind `after`."""
        uids = sorted(uid for uid in self._book.uids() if uid > after)
        return [report for uid in uids[:size] if (report := self.user(uid)) is not None]

    def user(self, uid: int) -> UserReport | None:
        """What a user has; None for one without an account."""
        account = self._book.find(uid)
        if account is None:
            return None
        return UserReport(
            uid=uid,
            connections=account.connections,
            subscriptions=account.use(SUBSCRIPTIONS),
            subscription_bytes=account.use(SUBSCRIPTION_BYTES),
            match_steps=account.use(MATCH_STEPS),
            backlog_bytes=account.use(BACKLOG_BYTES),
            socket_bytes=account.use(SOCKET_BYTES),
            waiting_bytes=account.use(WAITING_BYTES),
            blocking_clients=account.use(BLOCKING_CLIENTS),
            held_seconds=account.held_time.spent_ns(time.monotonic_ns()) / 1e9,
            discarded=account.use(DROPPED),
            limits=self._user_limits.limits_of(uid),
        )


def _sum(counters: list[Words]) -> Words:
    return [sum(column) for column in zip(*counters, strict=True)]


def _traffic(words: Words, subscriptions: int) -> Traffic:
    accepted, accepted_bytes = words[counter.ACCEPTED], words[counter.ACCEPTED_BYTES]
    discarded_bytes = words[counter.DROPPED_BYTES]
    undelivered, undelivered_bytes = words[counter.UNDELIVERED], words[counter.UNDELIVERED_BYTES]
    backlog, backlog_bytes = words[counter.IN_BACKLOG], words[counter.IN_BACKLOG_BYTES]
    replaced, replaced_bytes = words[counter.REPLACED], words[counter.REPLACED_BYTES]
    discarded = words[counter.DROPPED : counter.REFUSED]
    refused = zip(PACKET_CODES, words[counter.REFUSED : counter.LATENCY], strict=True)
    return Traffic(
        messages_in=words[counter.MESSAGES_IN],
        bytes_in=words[counter.BYTES_IN],
        accepted=accepted,
        accepted_bytes=accepted_bytes,
        delivered=accepted - sum(discarded) - replaced - undelivered - backlog,
        delivered_bytes=(
            accepted_bytes - discarded_bytes - replaced_bytes - undelivered_bytes - backlog_bytes
        ),
        discarded=dict(zip(DROP_REASONS, discarded, strict=True)),
        discarded_bytes=discarded_bytes,
        replaced=replaced,
        replaced_bytes=replaced_bytes,
        undelivered=undelivered,
        undelivered_bytes=undelivered_bytes,
        backlog=backlog,
        backlog_bytes=backlog_bytes,
        refused={code: count for code, count in refused if count},
        stalls=words[counter.STALLS],
        slow_sends=words[counter.SLOW_SENDS],
        subscriptions=subscriptions,
        route_lookups=words[counter.ROUTE_LOOKUPS],
        route_misses=words[counter.ROUTE_MISSES],
        latency=Latency(
            bounds_us=list(counter.LATENCY_BOUNDS_US),
            counts=list(words[counter.LATENCY :]),
            sum_us=words[counter.LATENCY_SUM_US],
        ),
    )
