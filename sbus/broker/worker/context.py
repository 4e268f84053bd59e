"""What all parts of one worker share."""

import msgspec

from sbus.broker.config.access_policy import KeyRules
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.ipc.link import Link
from sbus.broker.worker.client_events import ClientEvents
from sbus.protocol.keys import Dialect
from sbus.shared.accounts import Accounts
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.worker_statistics import WorkerStatistics


class WorkerContext(msgspec.Struct, kw_only=True):
    """One worker's number and settings, its views of the shared memory, and its ways to report.

    Nothing here changes, except that new settings replace the old ones as a whole.
    """

    number: int
    dialect: Dialect
    settings: BusSettings
    rules: KeyRules
    memory: SharedMemory
    accounts: Accounts
    stalls: StallTable
    statistics: WorkerStatistics
    link: Link
    """To the front."""
    emitter: EventEmitter
    client_events: ClientEvents

    def apply_settings(self, settings: BusSettings) -> None:
        """Obey these settings from now on."""
        self.settings = settings
        self.rules.replace(settings.rules, settings.limits.rule_cache_bytes_max)
        self.client_events.set_log_interval(settings.limits.log_interval_seconds)

    def wake(self) -> None:
        """Have this worker look again, before it sleeps, at what is ready."""
        self.memory.wake(1 << self.number)
