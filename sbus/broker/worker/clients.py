"""The clients of one worker: taking them over, and letting them go.

What a worker knows and does for its clients is put together here. This module does not know when a
client has a turn or what that is, how the order comes about, or who may connect.
"""

import select
import socket
from collections.abc import Callable
from functools import partial

import trio

from sbus.broker.config.access_policy import KeyRules, decode_rule_set
from sbus.broker.config.settings import BusSettings, SettingsUpdate
from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.broker.delivery.outbox import Outbox, StartWriter
from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.ipc.link import Link
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ClientLeft,
    DisconnectClient,
    SelfServiceReply,
    SelfServiceRequest,
)
from sbus.broker.worker.client_events import ClientEvents
from sbus.broker.worker.packet_handler import PacketHandler
from sbus.broker.worker.query_handler import QueryHandler
from sbus.broker.worker.router import Router
from sbus.broker.worker.scheduler import Scheduler, Writer
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.errors import ClientFault, Misbehaviour
from sbus.protocol.controls import error_notice
from sbus.protocol.keys import DIALECTS
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    BLOCKING,
    HELD_TIME,
    Accounts,
)
from sbus.shared.shared_memory import SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.shared.worker_statistics import ROUTE_MISSES, WorkerStatistics, counters_of
from sbus.unix.closing import discard_unread, shut_down
from sbus.unix.peer_process import PeerProcess


class Clients:
    """All clients of worker `number`. `start_writer` runs a task that waits for a client's socket,
    `wake_up` makes sure that turns are given soon."""

    def __init__(
        self,
        number: int,
        memory: SharedMemory,
        settings: BusSettings,
        epoll: select.epoll,
        link: Link,
        start_writer: StartWriter,
        wake_up: Callable[[], None],
        events: EventEmitter,
    ) -> None:
        limits = settings.limits
        self._number = number
        self._memory = memory
        self._limits = limits
        self._flood_control = settings.flood_control
        dialect = DIALECTS[settings.dialect]
        self._rules = KeyRules(settings.rules, dialect, limits.rule_cache_bytes_max)
        self._epoll = epoll
        self._link = link
        self._start_writer = start_writer
        self._wake_up = wake_up
        self._router = Router(number, dialect, limits, self._rules.may_receive)
        self._accounts = Accounts(memory.accounts, memory.workers, limits, number)
        self._stalls = StallTable(memory.stalls, limits.blocking_clients_max, number)
        self._statistics = WorkerStatistics(counters_of(memory.statistics, number))
        self.sequencer = Sequencer(
            memory, number, self._router, self._accounts, self._stalls, self._statistics
        )
        self.subscriptions = Subscriptions(
            number,
            self.sequencer,
            self._router,
            limits,
            self.sequencer.start(),
            partial(memory.wake, 1 << number),
        )
        self._sessions: dict[int, Session] = {}
        """By descriptor."""
        self._by_number: dict[int, Session] = {}
        self._rate_limiter = LogRateLimiter(limits.log_interval_seconds, events, memory.lock)
        self.events = ClientEvents(events, self._rate_limiter, self._by_number)
        self._commands = PacketHandler(
            dialect,
            limits,
            self._rules,
            self.sequencer,
            self.subscriptions,
            self._begin_blocking,
            self._inquire,
            self.events,
            self._statistics,
        )
        self.scheduler = Scheduler(
            limits,
            self._router,
            self._rules,
            self.sequencer,
            self._commands,
            self._rate_limiter,
            self.events,
            self._statistics,
            # A subscription makes every worker look.
            step_units=settings.workers,
            expel=self._expel,
            close=self.close,
        )
        self.answers = QueryHandler(
            self._by_number, self._router, self._rules, dialect, self.scheduler.waiting.reason
        )
        self._misses_before = self._statistics.counts[ROUTE_MISSES]

    # -- readiness -----------------------------------------------------------------------------
    def ready(self, fd: int) -> None:
        """The client with this descriptor may have sent something."""
        session = self._sessions.get(fd)
        if session is not None:
            session.more = True
            self.scheduler.turns.add(session)

    def retry(self) -> None:
        """Something changed: there may be room in the log, in the table or at a stalled client."""
        self.subscriptions.retry()
        self.scheduler.retry()

    def share_statistics(self) -> None:
        """Let everybody see what was counted so far."""
        self._statistics.counts[ROUTE_MISSES] = self._misses_before + self._router.cache.misses
        self._statistics.share()

    def _serve_soon(self, session: Session) -> None:
        self.scheduler.turns.add(session)
        self._memory.wake(1 << self._number)

    # -- coming --------------------------------------------------------------------------------
    def adopt(self, command: AdoptClient, fd: int) -> None:
        """Take over a client; `fd` is this worker's from now on."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
        sock.setblocking(False)
        own = command.credentials
        account = self._accounts[command.account]
        session = Session(command.client, own, account, sock, self._limits)
        writer = Writer(own.uid)
        session.outbox = writer.outbox = Outbox(
            sock,
            self._limits,
            self._flood_control,
            account,
            self._statistics,
            self._start_writer,
            partial(self._on_room, writer),
            partial(self._on_replied, session),
            partial(self._serve_soon, session),
            partial(self._rate_limiter.log_limit_reached, BACKLOG_BYTES, account, own),
        )
        session.secret_recipient = SecretRecipient(
            own, session.outbox, PeerProcess(sock, own.pid, own.began_at_ticks)
        )
        self._router.admit(session.outbox, session.secret_recipient)
        self._give_profile(session, command.rules)
        if session.outbox.blocks and not self._begin_blocking(session):
            self._rate_limiter.log_limit_reached(BLOCKING, account, own)
        self._sessions[fd] = self._by_number[session.id] = session
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def _give_profile(self, session: Session, rules: bytes) -> None:
        session.profile = self._rules.profile(decode_rule_set(rules))
        self._router.restrict(session.outbox, session.profile.subscribe)

    def reconfigure(self, what: SettingsUpdate, on_done: Callable[[], None]) -> None:
        """Go by other settings; `on_done` is called once other workers do so as well, as far as
        they wait for clients of this one."""
        limits = self._limits = self.scheduler.limits = what.settings.limits
        self._flood_control = what.settings.flood_control
        self._rate_limiter.set_interval(limits.log_interval_seconds)
        self.subscriptions.client_bytes_max = limits.client_subscription_bytes_max
        self._rules.replace(what.settings.rules, limits.rule_cache_bytes_max)
        for session in self._sessions.values():
            self._give_profile(session, what.rules_by_client.get(session.id, b""))
            if session.backpressure is not None:
                self._change_rule(session, session.backpressure.rule)
        self._router.forget_routes(limits.route_cache_bytes_max)
        for session in self.scheduler.waiting.everybody():
            self.scheduler.turns.add(session)
        self.subscriptions.when_changed(on_done)

    def _change_rule(self, session: Session, old: BackpressureRule) -> None:
        """Let a client hold publishers back as its new profile says."""
        new = old.changed_to(session.profile)
        if new is not None:
            self.subscriptions.change_rule(session, new)

    def _on_room(self, writer: Writer) -> None:
        """There is room for what waits for a client."""
        self.scheduler.turns.add(writer, sending=True)
        self._wake_up()

    def _on_replied(self, session: Session) -> None:
        """A reply that held a client back is sent."""
        if not session.outbox.replies_waiting:
            self._serve_soon(session)

    def _inquire(self, session: Session) -> None:
        """A client wants to know what the bus has of its user: the front knows."""
        session.inquiring = True
        self._link.send(SelfServiceRequest(session.id))

    def tell(self, command: SelfServiceReply) -> None:
        """The answer to an inquiry, if the client is still there."""
        session = self._by_number.get(command.client)
        if session is not None:
            session.inquiring = False
            session.outbox.reply(command.packet)
            self._serve_soon(session)

    def expel(self, command: DisconnectClient) -> None:
        """Disconnect a client because an administrator says so, if it is still there."""
        session = self._by_number.get(command.client)
        if session is not None:
            self._expel(session, Misbehaviour("kicked", command.text))

    def _begin_blocking(self, session: Session) -> bool:
        """Let a client hold publishers back from now on; False when there is no place for it, or
        its user has as many here as it leaves to others."""
        own, account = session.credentials, session.account
        leaves_enough = account.own_use(BLOCKING) < self._stalls.free
        place = self._stalls.take_place() if leaves_enough else None
        if place is None:
            return False
        account.count(BLOCKING, 1)
        session.backpressure = session.outbox.backpressure = Backpressure(
            BackpressureRule(session.id, place, account.place, own, session.profile),
            account,
            self._memory,
            self._stalls,
            self._statistics,
            partial(self._rate_limiter.log_limit_reached, HELD_TIME, account, own),
            partial(self.events.stalled, session),
        )
        self.subscriptions.begin_holding(session)
        return True

    # -- faults and ends -----------------------------------------------------------------------
    def _expel(self, session: Session, fault: ClientFault) -> None:
        """Disconnect a client that misbehaved, so that it can still read why."""
        self._statistics.record_refusal(fault.code)
        self.events.expelled(session, fault)
        discard_unread(session.sock, self._limits.drain_packets_max)
        if session.outbox.notices:
            session.outbox.send_last(error_notice(fault.code, fault.text))
        self.close(session, fault.code)

    def close(self, session: Session, reason: str) -> None:
        """End a session; the front closes its copy of the socket when it hears of it."""
        self.events.leaves(session)
        self.scheduler.waiting.remove(session)
        self.scheduler.count_waiting_bytes(session, 0)
        self.subscriptions.forget(session)
        self._router.dismiss(session.outbox)
        session.secret_recipient.close()
        self._commands.forget(session.secret_recipient)
        session.outbox.close()
        if session.backpressure is not None:
            self._stalls.give_back(session.backpressure.rule.place)
            session.account.count(BLOCKING, -1)
        fd = session.sock.fileno()
        self._epoll.unregister(fd)
        del self._sessions[fd]
        del self._by_number[session.id]
        trio.lowlevel.notify_closing(session.sock)
        shut_down(session.sock)
        self._link.send(ClientLeft(session.id, reason))

    def close_all(self) -> None:
        """The bus stops."""
        for session in list(self._sessions.values()):
            discard_unread(session.sock, self._limits.drain_packets_max)
            self.close(session, "the bus stops")
