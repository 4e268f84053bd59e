"""The verbs that report figures: `stats`, `workers`, `users`, and `version`."""

import os
import platform
import time

from sbus.broker.admin.request_codec import Handlers
from sbus.broker.admin.statistics import StatisticsCollector
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.rejector import Rejector
from sbus.broker.front.reload import Reloader
from sbus.broker.front.shutdown import Shutdown
from sbus.compiled import STEP
from sbus.protocol import admin
from sbus.protocol.admin_results import StatsResult, UsersResult, VersionResult, WorkersResult
from sbus.protocol.text import to_text
from sbus.version import __version__


class StatisticsHandlers:
    """Answers for the bus at `address`."""

    def __init__(
        self,
        reloader: Reloader,
        address: str,
        collector: StatisticsCollector,
        registry: ClientRegistry,
        rejector: Rejector,
        shutdown: Shutdown,
    ) -> None:
        self._reloader = reloader
        self._address = to_text(address.encode(errors="surrogateescape"))
        self._collector = collector
        self._registry = registry
        self._rejector = rejector
        self._shutdown = shutdown
        self._started_at = time.time()
        self._started_monotonic = time.monotonic()
        self.handlers: Handlers = {
            admin.Stats: self._stats,
            admin.Workers: self._workers,
            admin.Users: self._users,
            admin.Version: self._version,
        }

    async def _stats(self, _request: admin.Stats) -> StatsResult:
        log, table = await self._collector.fills()
        traffic, rates = self._collector.totals()
        return StatsResult(
            address=self._address,
            step=STEP,
            started_at=self._started_at,
            uptime_seconds=time.monotonic() - self._started_monotonic,
            draining=self._shutdown.is_draining,
            clients=len(self._registry),
            stored_clients=self._registry.stored,
            users=self._registry.connected_users(),
            connections_accepted=self._registry.admitted,
            connections_refused=dict(self._rejector.refused),
            missing_names=len(self._reloader.in_force.missing_names),
            stalled_clients=self._collector.stalled_clients(),
            log=log,
            table=table,
            traffic=traffic,
            rates=rates,
            workers=self._collector.workers(),
            longest_operations=self._collector.longest_operations(),
        )

    async def _workers(self, _request: admin.Workers) -> WorkersResult:
        return WorkersResult(self._collector.workers())

    async def _users(self, request: admin.Users) -> UsersResult:
        users = self._collector.users(request.after, request.limit)
        return UsersResult(users=users, next=users[-1].uid if len(users) == request.limit else None)

    async def _version(self, _request: admin.Version) -> VersionResult:
        settings = self._reloader.in_force.settings
        return VersionResult(
            version=__version__,
            protocol=admin.VERSION,
            python=platform.python_version(),
            step=STEP,
            address=self._address,
            dialect=settings.dialect,
            workers=settings.workers,
            pid=os.getpid(),
            started_at=self._started_at,
        )
