"""The verbs that change something: `kick`, `move`, `drain`, `limit` and `reload`."""

import trio

from sbus.broker.admin.request_codec import AdminFault, Handlers
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.mover import ClientMover
from sbus.broker.front.reload import Reloader
from sbus.broker.front.shutdown import Shutdown
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.broker.ipc.worker_protocol import DisconnectClient
from sbus.errors import ConfigurationError
from sbus.protocol import admin
from sbus.protocol.admin_events import ConfigurationRejected, ConfigurationReloaded, LimitsChanged
from sbus.protocol.admin_results import (
    DrainResult,
    KickResult,
    LimitResult,
    MoveResult,
    ReloadResult,
)
from sbus.protocol.controls import error_notice
from sbus.protocol.events import ClientKicked
from sbus.protocol.text import to_text
from sbus.unix.closing import end_connection, send_last

_KICK_SECONDS_MAX = 0.1
"""How long a worker may take to disconnect a client before the front does it."""


class ClientHandlers:
    """Disconnects and moves clients. Runs tasks in `nursery`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        supervisor: Supervisor,
        registry: ClientRegistry,
        mover: ClientMover,
        shutdown: Shutdown,
        events: EventEmitter,
    ) -> None:
        self._nursery = nursery
        self._supervisor = supervisor
        self._registry = registry
        self._mover = mover
        self._shutdown = shutdown
        self._events = events
        self.handlers: Handlers = {
            admin.Kick: self._kick,
            admin.Move: self._move,
            admin.Drain: self._drain,
        }

    async def _kick(self, request: admin.Kick) -> KickResult:
        client = self._find(request.client)
        own = client.credentials
        result = KickResult(client.number, own.uid, own.pid, to_text(client.program))
        text = request.text or "disconnected by an administrator"
        self._events.emit(ClientKicked(who=client.describe(), why=text))
        for worker in self._mover.workers_of(client):
            self._supervisor.send(worker, DisconnectClient(client.number, text))
        self._nursery.start_soon(self._disconnect_later, client, error_notice("kicked", text))
        return result

    def _find(self, number: int) -> Client:
        """Raises AdminFault."""
        client = self._registry.get(number)
        if client is None:
            raise AdminFault("not-found", f"there is no client {number}")
        return client

    async def _move(self, request: admin.Move) -> MoveResult:
        client = self._find(request.client)
        workers = len(self._supervisor.workers)
        if request.worker >= workers:
            raise AdminFault("not-found", f"there is no worker {request.worker}, of {workers}")
        outcome = await self._mover.move(client, request.worker)
        return MoveResult(client.number, client.worker, outcome.why_not)

    async def _disconnect_later(self, client: Client, notice: bytes) -> None:
        """End the connection of a client whose worker does not come to it."""
        await trio.sleep(_KICK_SECONDS_MAX)
        # One that is closed may have to read before there is room for the reason.
        if self._registry.get(client.number) is client and not self._registry.is_closed(client):
            if self._registry.wants_notices(client):
                send_last(client.sock, notice)
            end_connection(client.sock)

    async def _drain(self, request: admin.Drain) -> DrainResult:
        left = len(self._registry)
        self._shutdown.drain(request.timeout_seconds)
        return DrainResult(left)


class ConfigurationHandlers:
    """Changes what is in force."""

    def __init__(
        self, user_limits: EffectiveUserLimits, reloader: Reloader, events: EventEmitter
    ) -> None:
        self._user_limits = user_limits
        self._reloader = reloader
        self._events = events
        self.handlers: Handlers = {admin.Limit: self._limit, admin.Reload: self._reload}

    async def _limit(self, request: admin.Limit) -> LimitResult:
        before = self._user_limits.limits_of(request.uid)
        try:
            after = self._user_limits.change(request.uid, request.limits)
        except ConfigurationError as error:
            raise AdminFault("bad-request", str(error)) from error
        if request.limits:
            changes = [f"{name}={value}" for name, value in request.limits.items()]
            self._events.emit(LimitsChanged(uid=request.uid, changes=changes))
        return LimitResult(request.uid, before, after)

    async def _reload(self, _request: admin.Reload) -> ReloadResult:
        try:
            result = await self._reloader.reload()
        except ConfigurationError as error:
            self._events.emit(ConfigurationRejected(why=str(error)))
            raise AdminFault("failed", str(error)) from error
        self._events.emit(
            ConfigurationReloaded(applied=result.applied, needs_restart=result.needs_restart)
        )
        return result
