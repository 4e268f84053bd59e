"""What all parts of one worker share."""

import os

from sbus.broker.config.access_policy import KeyRules
from sbus.broker.config.settings import BusSettings
from sbus.broker.delivery.fan_out_times import FanOutTimes
from sbus.broker.delivery.origin import Origin
from sbus.broker.delivery.send_times import SendTimes
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.events.slow_operations import time_operations
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.broker.worker.client_events import ClientEvents
from sbus.protocol.keys import DIALECTS
from sbus.shared.accounts import Accounts
from sbus.shared.client_slots import ClientSlots
from sbus.shared.in_flight import InFlight
from sbus.shared.receipt_table import ReceiptTable
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.worker_statistics import WorkerStatistics, counters_of


class WorkerContext:
    """A worker's number and settings, its views of the shared memory, and its ways to report.

    Nothing here is replaced, except the settings as a whole. `link` leads to the front.
    """

    def __init__(
        self,
        worker: int,
        memory: SharedMemory,
        settings: BusSettings,
        emitter: EventEmitter,
        link: WorkerLink,
    ) -> None:
        limits = settings.limits
        self.worker = worker
        self.settings = settings
        self.dialect = DIALECTS[settings.dialect]
        self.rules = KeyRules(settings.rules, self.dialect, limits.rule_cache_bytes_max)
        self.memory = memory
        self.accounts = Accounts(memory.accounts, memory.workers, limits, worker)
        self.stalls = StallTable(memory.stalls, limits.blocking_clients_max, worker)
        self.client_slots = ClientSlots(memory.client_slots, worker)
        self.in_flight = InFlight(memory, worker)
        self.receipts = ReceiptTable(memory.receipts, memory.workers, worker)
        self.statistics = WorkerStatistics(counters_of(memory.statistics, worker))
        self.send_times = SendTimes(limits.users_max + 1, self.statistics)
        processors = len(os.sched_getaffinity(0))
        processor_share = min(1.0, processors / memory.workers)
        self.fan_out_times = FanOutTimes(limits.fan_out_us_max, processor_share)
        self.origin = Origin()
        self.link = link
        self.emitter = emitter
        rate_limiter = LogRateLimiter(limits.log_interval_seconds, emitter, memory.lock)
        self.client_events = ClientEvents(emitter, rate_limiter)
        self.operations = time_operations(memory, worker, rate_limiter)

    def apply_settings(self, settings: BusSettings) -> None:
        """Obey these settings from now on."""
        self.settings = settings
        self.rules.replace(settings.rules, settings.limits.rule_cache_bytes_max)
        self.fan_out_times.limit(settings.limits.fan_out_us_max)
        self.client_events.set_log_interval(settings.limits.log_interval_seconds)

    def wake(self) -> None:
        """Have this worker look again, before it sleeps, at what is ready."""
        self.memory.wake(1 << self.worker)
