"""The front's process: `build_front` puts its parts together, and `Front` is their lifecycle."""

import socket
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import trio

from sbus.broker.admin.action_handlers import ClientHandlers, ConfigurationHandlers
from sbus.broker.admin.inspection_handlers import InspectionHandlers
from sbus.broker.admin.self_service import SelfServiceQueries
from sbus.broker.admin.server import AdminServer
from sbus.broker.admin.statistics import StatisticsCollector
from sbus.broker.admin.statistics_handlers import StatisticsHandlers
from sbus.broker.admin.streams import StreamRegistry
from sbus.broker.admin.worker_queries import WorkerQueries
from sbus.broker.config.resolution import Configuration
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.admission import ClientAdmission
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.fork_server import ForkServer
from sbus.broker.front.reaper import Reaper
from sbus.broker.front.reload import Reloader
from sbus.broker.front.shutdown import Shutdown
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.table_compactor import TableCompactor
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.broker.ipc.worker_protocol import (
    ClientLeft,
    QueryReply,
    SelfServiceRequest,
    StreamStarted,
    WorkerEvent,
)
from sbus.protocol.events import BusReady
from sbus.shared.accounts import AccountBook
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.unix.address import address_of
from sbus.unix.notify import Notifier


class Endpoints(msgspec.Struct, frozen=True):
    """The listening sockets of a bus. Root, the bus's own user and members of `admin_gids` may
    administer it."""

    listener: socket.socket
    admin_listener: socket.socket | None = None
    admin_gids: frozenset[int] = frozenset()


class FrontResources(msgspec.Struct, frozen=True):
    """What the front's process borrows from `run_bus`, which made it before the event loop."""

    endpoints: Endpoints
    memory: SharedMemory
    fork_server: ForkServer
    events: EventEmitter
    notifier: Notifier


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the front between which workers' events are distributed. Observes workers."""

    supervisor: Supervisor
    registry: ClientRegistry
    admission: ClientAdmission
    shutdown: Shutdown
    streams: StreamRegistry
    queries: WorkerQueries
    self_service: SelfServiceQueries
    services: Sequence[Callable[[], Awaitable[None]]]
    """What runs as long as the bus serves."""

    async def serve(self, nursery: trio.Nursery, on_ready: Callable[[], None]) -> None:
        """Serve until the bus has to end. Tasks are left in `nursery`."""
        await nursery.start(self.shutdown.run)
        await self.supervisor.run(nursery, self)
        on_ready()
        for service in self.services:
            nursery.start_soon(service)
        await self.shutdown.wait()
        await self.supervisor.stop()

    def disconnect_clients(self) -> None:
        """Disconnect the clients that are left when all workers have ended."""
        for client in list(self.registry):
            self.admission.disconnect(client, "the bus stops")

    # -- workers -------------------------------------------------------------------------------
    def worker_forked(self, worker: int) -> None:
        self.streams.on_worker_forked(worker)

    def worker_event(self, worker: int, event: WorkerEvent) -> None:
        if isinstance(event, ClientLeft):
            self.admission.forget(event.client, event.reason)
        elif isinstance(event, QueryReply):
            self.queries.on_reply(worker, event)
        elif isinstance(event, SelfServiceRequest):
            self.self_service.add(event.client)
        elif isinstance(event, StreamStarted):
            self.streams.on_started(worker, event)

    def worker_died(self, worker: int) -> None:
        self.queries.on_worker_death(worker)
        self.streams.on_worker_death(worker)
        for client in self.registry.of_worker(worker):
            self.admission.disconnect(client, "its worker died")


async def run_front(
    configuration: Configuration,
    reread: Callable[[], Configuration],
    resources: FrontResources,
    on_ready: Callable[[], None],
) -> None:
    """Serve until a signal, or until the last client has left where that was asked for."""
    events = resources.events
    address = address_of(resources.endpoints.listener.getsockname()).format()

    def announce() -> None:
        on_ready()
        events.emit(BusReady(address=address, workers=configuration.settings.workers))

    async with trio.open_nursery() as nursery:
        front = build_front(nursery, configuration, reread, resources)
        await front.serve(nursery, announce)
        events.close()
        nursery.cancel_scope.cancel()
    front.disconnect_clients()


def build_front(
    nursery: trio.Nursery,
    configuration: Configuration,
    reread: Callable[[], Configuration],
    resources: FrontResources,
) -> Front:
    """All parts of the front, each with the parts that it needs."""
    settings, limits = configuration.settings, configuration.settings.limits
    endpoints, memory = resources.endpoints, resources.memory
    events, notifier = resources.events, resources.notifier

    book = AccountBook(memory.accounts, settings.workers, limits)
    user_limits = EffectiveUserLimits(settings, book)
    user_limits.apply_settings(settings)
    stalls = StallTable(memory.stalls, limits.blocking_clients_max, None)
    registry = ClientRegistry(settings.workers)
    shutdown = Shutdown(registry, settings, events, notifier)
    supervisor = Supervisor(
        resources.fork_server, memory, Reaper(memory, book, stalls), settings, events, notifier
    )
    rate_limiter = LogRateLimiter(limits.log_interval_seconds, events)
    acceptor = Acceptor(endpoints.listener, settings, user_limits, rate_limiter, events)
    admission = ClientAdmission(acceptor, supervisor, registry, shutdown, settings, events)

    queries = WorkerQueries(supervisor)
    streams = StreamRegistry(nursery, supervisor, settings, events)
    collector = StatisticsCollector(memory, supervisor, registry, user_limits, book, stalls)
    inspection = InspectionHandlers(settings, registry, queries, collector)
    self_service = SelfServiceQueries(registry, supervisor, inspection, limits.packet_bytes_max)
    services = [admission.run, TableCompactor(memory).run, collector.run, self_service.run]

    if endpoints.admin_listener is not None:
        reloader = Reloader(
            configuration,
            reread,
            registry,
            supervisor,
            [user_limits, acceptor, admission, shutdown, streams],
            notifier,
        )
        address = address_of(endpoints.listener.getsockname()).format()
        handlers = {
            **StatisticsHandlers(
                settings, address, collector, registry, acceptor, shutdown
            ).handlers,
            **inspection.handlers,
            **ClientHandlers(nursery, supervisor, registry, shutdown, events).handlers,
            **ConfigurationHandlers(user_limits, reloader, events).handlers,
        }
        server = AdminServer(
            endpoints.admin_listener, endpoints.admin_gids, handlers, streams, events
        )
        services.append(server.run)

    return Front(
        supervisor=supervisor,
        registry=registry,
        admission=admission,
        shutdown=shutdown,
        streams=streams,
        queries=queries,
        self_service=self_service,
        services=services,
    )
