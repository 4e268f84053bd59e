"""The front's process: `build_front` makes its parts, and `run_front` is its life."""

import os
import socket
from collections.abc import Callable

import msgspec
import trio

from sbus.broker.admin.action_handlers import ClientHandlers, ConfigurationHandlers
from sbus.broker.admin.inspection_handlers import InspectionHandlers
from sbus.broker.admin.self_service import SelfServiceQueries
from sbus.broker.admin.server import AdminServer
from sbus.broker.admin.statistics import StatisticsCollector
from sbus.broker.admin.statistics_handlers import StatisticsHandlers
from sbus.broker.admin.stream_registry import StreamRegistry
from sbus.broker.admin.upgrade_handlers import UpgradeHandlers
from sbus.broker.admin.worker_queries import WorkerQueries
from sbus.broker.config.resolution import Configuration, ConfigurationSource
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.events.slow_operations import time_operations
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.administrators import Administrators
from sbus.broker.front.admission import ClientAdmission
from sbus.broker.front.bus_recorder import BusRecorder
from sbus.broker.front.bus_resumption import BusResumption
from sbus.broker.front.callback_timer import CallbackTimer
from sbus.broker.front.client_descriptors import ClientDescriptors
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.client_restorer import ClientRestorer
from sbus.broker.front.client_store import ClientStore, ResumedBus, note_stability
from sbus.broker.front.closer import Closer
from sbus.broker.front.connection_policy import ConnectionPolicy
from sbus.broker.front.culprits import Culprits
from sbus.broker.front.departure import ClientDeparture
from sbus.broker.front.fork_server import ForkServer, WorkerExited, WorkerForked
from sbus.broker.front.hand_over import HandOver
from sbus.broker.front.load_meter import LoadMeter
from sbus.broker.front.mover import ClientMover, MoveEvent
from sbus.broker.front.name_search import find_names
from sbus.broker.front.placement import Placement
from sbus.broker.front.reaper import Reaper
from sbus.broker.front.rebalancer import Rebalancer
from sbus.broker.front.rejector import Rejector
from sbus.broker.front.reload import HasSettings, Parts, Reloader
from sbus.broker.front.shutdown import Shutdown
from sbus.broker.front.succession import Succession
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.table_compactor import keep_table_compact
from sbus.broker.front.take_over import TakeOver
from sbus.broker.front.upgrade import Estate, ProgramCommand, Upgrader
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.broker.front.worker_rounds import WorkerRounds
from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.upgrade_link import report_serving
from sbus.compiled import STEP
from sbus.protocol.events import BusReady, BusResumed, BusTakenOver, PidfileEmpty
from sbus.shared.account_book import AccountBook
from sbus.shared.client_slots import ClientSlots
from sbus.shared.operation_times import OperationTimes
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.unix.address import address_of
from sbus.unix.bus_files import BusFiles
from sbus.unix.descriptor_store import StoredDescriptors
from sbus.unix.notify import Notifier
from sbus.unix.users import Identity
from sbus.version import __version__


class Predecessor(msgspec.Struct, frozen=True):
    """A bus whose place is to be taken: the link to it, and a pidfd of its front."""

    link: socket.socket
    front_pidfd: int
    pass_on_stop: Callable[[], None] = lambda: None
    """Repeats a signal to stop that came before the front could handle it."""


class Endpoints(msgspec.Struct, frozen=True):
    """The listening sockets of a bus. Root, the bus's own user and members of `admin_gids` may
    administer it."""

    listener: socket.socket
    admin_listener: socket.socket | None = None
    admin_gids: frozenset[int] = frozenset()
    is_inherited: bool = False
    """Whether another process may listen at the same socket."""
    files: BusFiles = msgspec.field(default_factory=BusFiles)
    owner: Identity = msgspec.field(default_factory=Identity.of_this_process)
    command: ProgramCommand | None = None
    """Which program takes the place of the bus when that is upgraded."""
    predecessor: Predecessor | None = None
    stored: StoredDescriptors = msgspec.field(default_factory=StoredDescriptors)
    """What an earlier bus has left in the descriptor store."""

    def address(self) -> str:
        """Where clients connect."""
        return address_of(self.listener.getsockname()).format()

    def estate(self, dialect: str) -> Estate:
        """What a bus that takes the place of this one gets, besides the clients."""
        return Estate(
            listener=self.listener,
            admin_listener=self.admin_listener,
            is_inherited=self.is_inherited,
            dialect=dialect,
            files=self.files,
            owner=self.owner,
            command=self.command,
        )


class FrontResources(msgspec.Struct, frozen=True, kw_only=True):
    """What the front's process has before its event loop starts."""

    configuration: Configuration
    source: ConfigurationSource
    endpoints: Endpoints
    memory: SharedMemory
    resumed: ResumedBus = ResumedBus()
    fork_server: ForkServer
    events: EventEmitter
    notifier: Notifier


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the front. Distributes among them what the supervisor reports of workers."""

    user_limits: EffectiveUserLimits
    registry: ClientRegistry
    closer: Closer
    shutdown: Shutdown
    supervisor: Supervisor
    administrators: Administrators
    policy: ConnectionPolicy
    rejector: Rejector
    acceptor: Acceptor
    placement: Placement
    admission: ClientAdmission
    departure: ClientDeparture
    mover: ClientMover
    rebalancer: Rebalancer
    queries: WorkerQueries
    streams: StreamRegistry
    succession: Succession
    rounds: WorkerRounds
    client_store: ClientStore
    resumption: BusResumption
    upgrader: Upgrader
    take_over: TakeOver
    collector: StatisticsCollector
    inspection: InspectionHandlers
    self_service: SelfServiceQueries
    operations: OperationTimes

    def worker_forked(self, worker: int) -> None:
        self.streams.on_worker_forked(worker)
        self.succession.on_fork(worker)

    def closer_event(self, event: WorkerForked | WorkerExited) -> None:
        self.closer.on_event(event)

    def worker_event(self, worker: int, event: protocol.WorkerEvent) -> None:
        if isinstance(event, protocol.ClientLeft):
            self.departure.forget(event.client, event.reason)
        elif isinstance(event, MoveEvent):
            self.mover.on_event(worker, event)
        elif isinstance(event, protocol.Done):
            self.rounds.on_done(worker, event)
        elif isinstance(event, protocol.TookOver):
            self.succession.on_taken_over(worker, event.clients)
        elif isinstance(event, protocol.TrafficSample):
            self.rebalancer.on_sample(worker, event)
        elif isinstance(event, protocol.QueryReply):
            self.queries.on_reply(worker, event)
        elif isinstance(event, protocol.SelfServiceRequest):
            self.self_service.add(event.client)
        elif isinstance(event, protocol.StreamStarted):
            self.streams.on_started(worker, event)

    async def worker_died(self, worker: int) -> None:
        self.rounds.on_worker_death(worker)
        self.queries.on_worker_death(worker)
        self.streams.on_worker_death(worker)
        self.rebalancer.on_worker_death(worker)
        self.mover.on_worker_death(worker)
        self.succession.on_death(worker)
        self.succession.leave_out(worker, await self.mover.wait_for_decisions(worker))


async def run_front(resources: FrontResources, on_ready: Callable[[], None]) -> None:
    """Serve until a signal, or until the last client has left where that was asked for. `on_ready`
    is called once, when all workers serve."""
    front: Front | None = None
    try:
        async with trio.open_nursery() as nursery:
            front = build_front(nursery, resources)
            await _serve(nursery, front, resources, on_ready)
            nursery.cancel_scope.cancel()
    except BaseException:
        if front is not None and not front.shutdown.is_handed_over:
            front.supervisor.kill_all()  # before they take the clients for gone
            with trio.CancelScope(shield=True):
                await front.departure.disconnect_all("bus-failed", front.client_store.keeps_clients)
        raise
    front.closer.end()


async def _serve(
    nursery: trio.Nursery, front: Front, resources: FrontResources, on_ready: Callable[[], None]
) -> None:
    """Start everything, and return when the bus has to end and its connections have ended."""
    reloader = build_reloader(front, resources)
    admin_server = build_admin_server(nursery, front, resources, reloader)
    await nursery.start(front.shutdown.run)
    if resources.memory.is_resumed:
        lost = await front.resumption.run(resources.resumed.sockets)
    await front.supervisor.run(nursery, front)
    trio.lowlevel.add_instrument(CallbackTimer(front.operations))
    nursery.start_soon(front.closer.run)
    nursery.start_soon(keep_table_compact, resources.memory)
    if (predecessor := resources.endpoints.predecessor) is not None:
        await take_over(front, predecessor, resources)
    front.supervisor.start_replacing()
    if resources.memory.is_resumed:
        await front.supervisor.wait_for_successors()
        resources.events.emit(BusResumed(clients=len(front.registry), lost=lost))
        front.shutdown.check_empty()
    front.acceptor.configure_listener()
    on_ready()
    nursery.start_soon(announce_and_store, front, resources)
    nursery.start_soon(front.rebalancer.run)
    nursery.start_soon(front.admission.run, front.shutdown.admission_scope)
    nursery.start_soon(front.collector.run)
    nursery.start_soon(front.self_service.run)
    nursery.start_soon(note_stability, resources.memory)
    nursery.start_soon(find_names, reloader, front.upgrader, resources.events)
    if not resources.resumed.has_configured_shape:
        nursery.start_soon(front.upgrader.replace_program)
    if admin_server is not None:
        nursery.start_soon(admin_server.run, front.shutdown.administration_scope)
    await front.shutdown.wait()
    if front.shutdown.is_handed_over:
        await front.supervisor.end_silently()
        resources.events.close()
        return
    if front.shutdown.is_restarting and front.client_store.keeps_clients:
        resources.memory.resume_attempts = 0
        await front.supervisor.end_silently()
    else:
        front.client_store.give_up()
        await front.supervisor.stop(front.shutdown.code)
    await end_connections(front, resources.endpoints)
    front.streams.end_all(front.shutdown.why)


async def announce_and_store(front: Front, resources: FrontResources) -> None:
    """Report that this bus serves, and then have the service manager keep what another one needs,
    as long as this one serves."""
    address, workers = resources.endpoints.address(), resources.configuration.settings.workers
    ready = BusReady(address=address, workers=workers, version=__version__, step=STEP)
    resources.events.emit(ready)
    if (predecessor := resources.endpoints.predecessor) is not None:
        await report_serving(predecessor.link)  # The manager expects this process from then on.
    resources.notifier.ready(f"{workers} workers serve at {address}")
    await front.client_store.run()


async def take_over(front: Front, predecessor: Predecessor, resources: FrontResources) -> None:
    """Take the place of another bus. Raises SbusError; then that still has the clients."""
    predecessor.pass_on_stop()
    try:
        await front.take_over.run(predecessor.link, predecessor.front_pidfd)
    except BaseException:
        front.registry.leave_all()
        raise
    if why := resources.endpoints.files.take_over():
        resources.events.emit(PidfileEmpty(why=why))
    resources.events.emit(BusTakenOver(clients=len(front.registry)))


async def end_connections(front: Front, endpoints: Endpoints) -> None:
    """End those that are left when no worker serves any more and no other bus will, also those that
    wait to be accepted. Those to an inherited socket are not lost, if its owner has it still."""
    await front.departure.disconnect_all(front.shutdown.code, front.client_store.keeps_clients)
    if not endpoints.is_inherited:
        endpoints.listener.shutdown(socket.SHUT_RD)
        await front.acceptor.refuse_waiting()
    await front.closer.settle()


def build_front(nursery: trio.Nursery, resources: FrontResources) -> Front:
    """The parts of the front, each with the parts that it needs."""
    settings, limits = resources.configuration.settings, resources.configuration.settings.limits
    memory, events, notifier = resources.memory, resources.events, resources.notifier
    endpoints, resumed = resources.endpoints, resources.resumed
    book, user_limits = _open_accounts(memory, settings)
    stalls = StallTable(memory.stalls, limits.blocking_clients_max, None)
    registry = ClientRegistry(settings.workers, ClientSlots(memory.client_slots))
    shutdown = Shutdown(registry, settings, events, notifier)
    reaper = Reaper(memory, book, stalls)
    supervisor = Supervisor(resources.fork_server, memory, reaper, settings, events, notifier)
    rate_limiter = LogRateLimiter(limits.log_interval_seconds, events)
    administrators = Administrators(endpoints.admin_gids)
    descriptors = ClientDescriptors(settings.workers, memory.shape.slots, len(resumed.sockets))
    policy = ConnectionPolicy(settings, user_limits, descriptors, administrators)
    closer = Closer(resources.fork_server, rate_limiter)
    rejector = Rejector(settings, user_limits, closer, rate_limiter, events)
    acceptor = Acceptor(endpoints.listener, settings, policy, rejector, closer, rate_limiter)
    meter = LoadMeter(supervisor, registry)
    placement = Placement(settings, meter.loads, len(os.sched_getaffinity(0)))
    departure = ClientDeparture(acceptor, registry, closer, shutdown, settings, events)
    culprits = Culprits(memory, supervisor, registry, departure, events)
    mover = ClientMover(nursery, policy, supervisor, registry, departure, events)
    succession = Succession(nursery, policy, supervisor, registry, culprits, events)
    queries, rounds = WorkerQueries(supervisor), WorkerRounds(supervisor)
    collector = StatisticsCollector(memory, supervisor, meter, user_limits, book, stalls)
    inspection = InspectionHandlers(settings, registry, queries, collector)
    recorder = BusRecorder(memory, registry, acceptor, rejector, user_limits)
    restorer = ClientRestorer(supervisor, registry, policy, user_limits, placement, departure)
    client_store = ClientStore(memory, registry, notifier, resumed, endpoints.listener)
    estate = endpoints.estate(settings.dialect)
    hand_over = HandOver(supervisor, rounds, acceptor, mover, recorder, shutdown)
    return Front(
        user_limits=user_limits,
        registry=registry,
        closer=closer,
        shutdown=shutdown,
        supervisor=supervisor,
        administrators=administrators,
        policy=policy,
        rejector=rejector,
        acceptor=acceptor,
        placement=placement,
        admission=ClientAdmission(acceptor, policy, supervisor, registry, placement, events),
        departure=departure,
        mover=mover,
        rebalancer=Rebalancer(placement, meter, mover, registry, supervisor, settings),
        queries=queries,
        streams=StreamRegistry(nursery, supervisor, settings, events),
        succession=succession,
        rounds=rounds,
        client_store=client_store,
        resumption=BusResumption(memory, registry, user_limits, departure, reaper, succession),
        upgrader=Upgrader(hand_over, estate, shutdown, client_store, events, notifier),
        take_over=TakeOver(supervisor, rounds, restorer, acceptor, recorder, shutdown),
        collector=collector,
        inspection=inspection,
        self_service=SelfServiceQueries(registry, supervisor, inspection, limits.packet_bytes_max),
        operations=time_operations(memory, None, rate_limiter),
    )


def _open_accounts(
    memory: SharedMemory, settings: BusSettings
) -> tuple[AccountBook, EffectiveUserLimits]:
    book = AccountBook(memory.accounts, settings.workers, settings.limits)
    if memory.is_resumed:
        book.resume()
    user_limits = EffectiveUserLimits(settings, book)
    user_limits.apply_settings(settings)
    return book, user_limits


def build_reloader(front: Front, resources: FrontResources) -> Reloader:
    others: list[HasSettings] = [
        *(front.policy, front.rejector, front.acceptor),
        *(front.placement, front.rebalancer, front.departure, front.shutdown, front.streams),
    ]
    parts, notifier = Parts(front.user_limits, others), resources.notifier
    configuration, source = resources.configuration, resources.source
    return Reloader(configuration, source, front.registry, front.supervisor, parts, notifier)


def build_admin_server(
    nursery: trio.Nursery, front: Front, resources: FrontResources, reloader: Reloader
) -> AdminServer | None:
    """The admin socket's server with the handlers of its verbs, if the bus has that socket."""
    endpoints = resources.endpoints
    if endpoints.admin_listener is None:
        return None
    events, registry, shutdown = resources.events, front.registry, front.shutdown
    figures = StatisticsHandlers(
        reloader, endpoints.address(), front.collector, registry, front.rejector, shutdown
    )
    clients = ClientHandlers(nursery, front.supervisor, registry, front.mover, shutdown, events)
    configuration = ConfigurationHandlers(front.user_limits, reloader, events)
    upgrades = UpgradeHandlers(front.upgrader, front.streams)
    changes = upgrades.refused_meanwhile({**clients.handlers, **configuration.handlers})
    return AdminServer(
        endpoints.admin_listener,
        front.administrators,
        front.closer,
        {**figures.handlers, **front.inspection.handlers, **changes},
        {**front.streams.takers, **upgrades.takers},
        events,
    )
