"""The front: lets clients in, gives each to the worker with the fewest, and keeps the bus together.

It keeps a copy of every client's socket. It never reads or writes them: the copy lets it end the
connections of a worker that died in good order, and later hand them to its successor. Every client
is known here from its admission until its worker, or that worker's death, says that it has left.

This module does not know packets, subscriptions or the order of messages.
"""

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

import trio

from sbus.broker.admin.handlers import AdminActions, AdminHandlers
from sbus.broker.admin.self_service import SelfServiceQueries
from sbus.broker.admin.server import AdminServer
from sbus.broker.admin.statistics import SAMPLE_SECONDS, StatisticsCollector
from sbus.broker.admin.streams import StreamRegistry
from sbus.broker.config.access_policy import PeerRules, encode_rule_set
from sbus.broker.config.resolution import Configuration
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter, client_of
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.bounded_lock import trying
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.fork_server import ForkServer
from sbus.broker.front.reload import Reloader
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.broker.ipc.queries import PendingQueries
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ClientLeft,
    DisconnectClient,
    QueryReply,
    SelfServiceReply,
    SelfServiceRequest,
    StreamStarted,
    WorkerEvent,
)
from sbus.protocol import events as kinds
from sbus.protocol.events import (
    AdminRequestFailed,
    BusReady,
    BusStopping,
    ClientConnected,
    ClientDisconnected,
    ClientKicked,
    Draining,
)
from sbus.protocol.keys import DIALECTS
from sbus.protocol.text import to_text
from sbus.shared.accounts import AccountBook
from sbus.shared.compaction import Compaction
from sbus.shared.shared_memory import COMPACTION_WANTED, TABLE_TAIL, SharedMemory
from sbus.shared.subscription_table import all_have_read
from sbus.unix.address import address_of
from sbus.unix.closing import discard_unread, shut_down
from sbus.unix.notify import Notifier

_READERS_RETRY_SECONDS = 0.01
_KICK_SECONDS = 0.1
"""For which a worker may take to kick a client, before the front ends the connection itself."""


class Front:
    """The front of one bus. Borrows `listener`, and `admin_listener` if there is one, on which
    root, this process's user and members of `admin_gids` are answered. `reread` says what is to
    hold, see `Reloader`."""

    def __init__(
        self,
        configuration: Configuration,
        reread: Callable[[], Configuration],
        listener: socket.socket,
        memory: SharedMemory,
        fork_server: ForkServer,
        on_ready: Callable[[], None],
        events: EventEmitter,
        notifier: Notifier,
        admin_listener: socket.socket | None = None,
        admin_gids: frozenset[int] = frozenset(),
    ) -> None:
        settings = configuration.settings
        self._settings = settings
        self._limits = settings.limits
        self._memory = memory
        self._on_ready = on_ready
        self._events = events
        self._notifier = notifier
        self._address = address_of(listener.getsockname()).format()
        self._rate_limiter = LogRateLimiter(settings.limits.log_interval_seconds, events)
        book = AccountBook(memory.accounts, memory.workers, settings.limits)
        self._user_limits = EffectiveUserLimits(settings, book)
        self._user_limits.apply_settings(settings)
        self._acceptor = Acceptor(listener, settings, self._user_limits, self._rate_limiter, events)
        self._supervisor = Supervisor(
            fork_server,
            memory,
            settings,
            book,
            events,
            lambda worker: self._watches.introduce(worker),
            self._on_report,
            self._on_worker_death,
            notifier,
        )
        self._watches = StreamRegistry(
            self._limits,
            DIALECTS[settings.dialect],
            events,
            self._supervisor.who_can_be_told,
            self._supervisor.tell,
        )
        self._registry = ClientRegistry(settings.workers)
        self._questions = PendingQueries()
        self._reloader = Reloader(
            configuration, reread, self._registry, self._supervisor, self._apply_settings, notifier
        )
        self._statistics_collector = StatisticsCollector(
            memory, self._supervisor, self._registry, book, self._user_limits
        )
        self._administration = AdminHandlers(
            settings,
            self._address,
            self._registry,
            self._supervisor,
            self._statistics_collector,
            self._questions,
            self._user_limits,
            lambda: dict(self._acceptor.counts),
            AdminActions(
                kick=self._kick,
                drain=self._drain,
                is_draining=lambda: self._draining,
                reload=self._reloader.reload,
            ),
            events,
        )
        self._self_service = SelfServiceQueries(
            self._registry, self._limits.packet_bytes_max, self._administration.me, self._tell
        )
        self._admin_server = None
        if admin_listener is not None:
            self._admin_server = AdminServer(
                admin_listener,
                admin_gids,
                self._administration.answer,
                self._watches.begin,
                self._on_admin_failure,
            )
        self._letting_in = trio.CancelScope()
        self._draining = False
        self._stop = trio.Event()

    async def run(self) -> None:
        """Serve until a signal, or until the last client has left where that was asked for."""
        async with trio.open_nursery() as tasks:
            self._tasks = tasks
            await tasks.start(self._stop_on_signal)
            self._watches.run(tasks)
            await self._supervisor.run(tasks)
            self._on_ready()
            self._events.emit(BusReady(address=self._address, workers=self._settings.workers))
            tasks.start_soon(self._let_in)
            tasks.start_soon(self._keep_table_small)
            tasks.start_soon(self._keep_samples)
            tasks.start_soon(self._self_service.run)
            if self._admin_server is not None:
                tasks.start_soon(self._admin_server.run)
            await self._stop.wait()
            self._notifier.stopping(f"Ending, with {len(self._registry)} clients")
            self._events.emit(BusStopping(clients=len(self._registry)))
            self._letting_in.cancel()
            await self._supervisor.stop()
            self._events.close()
            tasks.cancel_scope.cancel()
        for client in list(self._registry):
            self._cut_off(client.number, "the bus stops")

    async def _stop_on_signal(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                self._stop.set()

    # -- clients -------------------------------------------------------------------------------
    async def _let_in(self) -> None:
        with self._letting_in:
            while True:
                who = await self._acceptor.next_client()
                worker = await self._supervisor.wait_for_worker(self._registry.load)
                client = Client(
                    number=self._registry.number(),
                    worker=worker,
                    account=who.account,
                    sock=who.sock,
                    credentials=who.credentials,
                    connected_at=time.time(),
                )
                self._registry.add(client)
                # Its rules are looked up now: they may have changed while it waited for a worker.
                rules = encode_rule_set(self._acceptor.concerning(who.sock, who.credentials))
                command = AdoptClient(client.number, who.credentials, who.account.place, rules)
                if self._events.is_watched:
                    self._events.emit(ClientConnected(who=_who(client), worker=worker))
                self._supervisor.tell(worker, command, who.sock.fileno())
                await trio.lowlevel.checkpoint()

    def _on_report(self, worker: int, report: WorkerEvent) -> None:
        if isinstance(report, ClientLeft):
            self._give_up(report.client, report.reason)
        elif isinstance(report, QueryReply):
            self._questions.on_answer(worker, report.number, report.data)
        elif isinstance(report, SelfServiceRequest):
            self._self_service.add(report.client)
        elif isinstance(report, StreamStarted):
            self._watches.on_answer(worker, report)

    def _on_worker_death(self, worker: int) -> None:
        self._questions.on_death(worker)
        self._watches.on_worker_death(worker)
        for client in self._registry.of_worker(worker):
            self._cut_off(client.number, "its worker died")

    def _cut_off(self, number: int, reason: str) -> None:
        """End the connection of a client whose worker did not, in good order."""
        client = self._registry.get(number)
        assert client is not None, "it was given up already"
        discard_unread(client.sock, self._limits.drain_packets_max)
        self._give_up(number, reason)

    def _give_up(self, number: int, reason: str) -> None:
        """Forget a client, and close this copy of its socket."""
        client = self._registry.remove(number)
        if self._events.is_watched:
            gone = ClientDisconnected(who=_who(client), worker=client.worker, reason=reason)
            self._events.emit(gone)
        shut_down(client.sock)
        self._acceptor.client_left(client.account)
        if (self._settings.exit_when_empty or self._draining) and not self._registry:
            self._stop.set()

    def _apply_settings(self, settings: BusSettings, rules: PeerRules) -> None:
        """Have other settings from now on; `rules` are theirs."""
        self._settings = settings
        self._limits = settings.limits
        self._rate_limiter.set_interval(settings.limits.log_interval_seconds)
        self._watches.limits = settings.limits
        self._acceptor.apply_settings(settings, rules)
        self._user_limits.apply_settings(settings)

    def _tell(self, number: int, packet: bytes) -> None:
        client = self._registry.get(number)
        if client is not None:
            self._supervisor.tell(client.worker, SelfServiceReply(number, packet))

    # -- what administrators have done ---------------------------------------------------------
    def _on_admin_failure(self, error: Exception) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        self._events.emit(
            AdminRequestFailed(
                why=to_text(repr(error).encode(errors="surrogateescape"))[:200], where=where
            )
        )

    def _kick(self, client: Client, text: str) -> None:
        """Have a client's worker end its connection; if that does not come to it, it is ended
        here."""
        self._events.emit(ClientKicked(who=_who(client), why=text))
        self._supervisor.tell(client.worker, DisconnectClient(client.number, text))
        self._tasks.start_soon(self._insist, client)

    async def _insist(self, client: Client) -> None:
        await trio.sleep(_KICK_SECONDS)
        if self._registry.get(client.number) is not client:
            return
        with suppress(OSError):  # it has gone
            client.sock.shutdown(socket.SHUT_RDWR)

    def _drain(self, timeout_seconds: float | None) -> None:
        """Let nobody in any more; stop with the last client, or when the time is up."""
        self._draining = True
        self._notifier.status(f"Lets nobody in any more, {len(self._registry)} clients are left")
        self._events.emit(Draining(clients=len(self._registry)))
        self._letting_in.cancel()
        if not self._registry:
            self._stop.set()
        elif timeout_seconds is not None:
            self._tasks.start_soon(self._stop_after, timeout_seconds)

    async def _stop_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._stop.set()

    async def _keep_samples(self) -> None:
        while True:
            self._statistics_collector.sample()
            await trio.sleep(SAMPLE_SECONDS)

    # -- the subscription table ----------------------------------------------------------------
    async def _keep_table_small(self) -> None:
        """Compact the table whenever a worker finds that it has grown."""
        eventfd = self._memory.eventfds[self._settings.workers]
        while True:
            await trio.lowlevel.wait_readable(eventfd)
            os.eventfd_read(eventfd)
            await self._compact()

    async def _compact(self) -> None:
        compaction = None
        while compaction is None:
            async with trying(self._memory.lock) as words:
                if not words[COMPACTION_WANTED]:
                    return
                if all_have_read(self._memory, words):
                    compaction = Compaction(self._memory, words)
            if compaction is None:
                self._memory.wake((1 << self._settings.workers) - 1)
                await trio.sleep(_READERS_RETRY_SECONDS)
        while compaction.step():
            await trio.lowlevel.checkpoint()
        finished = False
        while not finished:
            async with trying(self._memory.lock) as words:
                finished = compaction.finish(words)
                tail = words[TABLE_TAIL]
            if not finished:
                compaction.copy_journal(tail)
        self._memory.wake((1 << self._settings.workers) - 1)


def _who(client: Client) -> kinds.Client:
    return client_of(client.number, client.credentials, client.sock)
