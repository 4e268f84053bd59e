"""The clients of one worker: taking them over, giving them their turn, and letting them go.

A turn reads a batch of a client's packets, gives runs of messages their place in the order, and
has every other packet obeyed. What cannot be done yet stays with the session, and the client in the
waiting room; nobody else waits for it.

This module does not know when a client has a turn, how the order comes about, or who may connect.
"""

import select
import socket
import time
from collections.abc import Callable
from functools import partial

import trio

from sbus.broker.access import KeyRules, Profile, unpack
from sbus.broker.answers import Answers
from sbus.broker.backpressure import Backpressure, Blocker
from sbus.broker.client_events import ClientEvents
from sbus.broker.commands import Commands
from sbus.broker.complaints import Complaints
from sbus.broker.events import Events
from sbus.broker.exchange import Exchange
from sbus.broker.handoff import Adopt, Expel, Gone, Inquiry, Link, Tell
from sbus.broker.holder import Holder
from sbus.broker.outbox import Outbox, StartWriter
from sbus.broker.quota_reports import QuotaReports
from sbus.broker.reconfiguration import Reconfiguration
from sbus.broker.router import Route, Router
from sbus.broker.session import Session
from sbus.broker.settings import BusSettings
from sbus.broker.subscriptions import Subscriptions
from sbus.broker.turns import Turns
from sbus.broker.waiting import FOR_ROOM, Reason, Wait, WaitingRoom
from sbus.errors import ClientFault, Misbehaviour, QuotaReached, Refusal
from sbus.protocol.controls import error_notice
from sbus.protocol.keys import DIALECTS
from sbus.shared.accounts import (
    BACKLOG_BYTES,
    BLOCKING,
    HELD_TIME,
    PUBLISH_RATE,
    WAITING_BYTES,
    Accounts,
)
from sbus.shared.segment import Segment
from sbus.shared.stalls import Stalls
from sbus.shared.statistics import BYTES_IN, ROUTE_MISSES, Statistics, counters_of
from sbus.unix.closing import drain, shut_down
from sbus.unix.peer_process import PeerProcess

_NO_ROOM_RETRY_NS = 50_000_000
"""When a client is tried again whose user has no room for what it sends."""


_BYTES_PER_UNIT = 4096


class Writer:
    """A backlog of a client, in line to be sent."""

    __slots__ = ("in_line", "outbox", "uid")

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.in_line = False
        self.outbox: Outbox


class Clients:
    """All clients of worker `number`. `start_writer` runs a task that waits for a client's socket,
    `wake_up` makes sure that turns are given soon."""

    def __init__(
        self,
        number: int,
        segment: Segment,
        settings: BusSettings,
        epoll: select.epoll,
        link: Link,
        start_writer: StartWriter,
        wake_up: Callable[[], None],
        events: Events,
    ) -> None:
        limits = settings.limits
        self._number = number
        self._segment = segment
        self._limits = limits
        self._flood_control = settings.flood_control
        dialect = DIALECTS[settings.dialect]
        self._rules = KeyRules(settings.rules, dialect, limits.rule_cache_bytes_max)
        self._epoll = epoll
        self._link = link
        self._start_writer = start_writer
        self._wake_up = wake_up
        self._router = Router(number, dialect, limits, self._rules.lets_through)
        self._accounts = Accounts(segment.accounts, segment.workers, limits, number)
        self._stalls = Stalls(segment.stalls, limits.blocking_clients_max, number)
        self._statistics = Statistics(counters_of(segment.statistics, number))
        self.exchange = Exchange(
            segment, number, self._router, self._accounts, self._stalls, self._statistics
        )
        self.subscriptions = Subscriptions(
            number,
            self.exchange,
            self._router,
            limits,
            self.exchange.start(),
            partial(segment.wake, 1 << number),
        )
        self.turns: Turns[Session | Writer] = Turns()
        self.waiting = WaitingRoom(self.exchange.end_holding)
        self._sessions: dict[int, Session] = {}
        """By descriptor."""
        self._by_number: dict[int, Session] = {}
        self.answers = Answers(
            self._by_number, self._router, lambda: self._rules, dialect, self.waiting.reason
        )
        complaints = Complaints(limits.log_interval_seconds, events)
        self.events = ClientEvents(events, complaints, self._by_number)
        self._reports = QuotaReports(segment, limits.log_interval_seconds, events)
        self._commands = Commands(
            dialect,
            limits,
            self._rules,
            self.exchange,
            self.subscriptions,
            self._begin_blocking,
            self._inquire,
            self.events,
            self._statistics,
        )
        self._misses_before = self._statistics.counts[ROUTE_MISSES]
        self._step_units = settings.workers
        """What a packet other than a message costs: a subscription makes every worker look."""
        self._waiting_bytes = 0
        """What was read of all clients and has to wait."""
        self.quiescing = False
        """No client is read any further."""

    # -- readiness -----------------------------------------------------------------------------
    def ready(self, fd: int) -> None:
        """The client with this descriptor may have sent something."""
        session = self._sessions.get(fd)
        if session is not None:
            session.more = True
            self.turns.add(session)

    def retry(self) -> None:
        """Something changed: there may be room in the log, in the table or at a stalled client."""
        self.subscriptions.retry()
        for session in self.waiting.woken():
            self.turns.add(session)

    def retry_due(self) -> None:
        """Try again those that waited for a time that has come."""
        now_ns = time.monotonic_ns()
        if self.waiting.next_ns <= now_ns:
            for session in self.waiting.due(now_ns):
                self.turns.add(session)

    def share_statistics(self) -> None:
        """Let everybody see what was counted so far."""
        self._statistics.counts[ROUTE_MISSES] = self._misses_before + self._router.cache.misses
        self._statistics.share()

    def _serve_soon(self, session: Session) -> None:
        self.turns.add(session)
        self._segment.wake(1 << self._number)

    # -- coming --------------------------------------------------------------------------------
    def adopt(self, order: Adopt, fd: int) -> None:
        """Take over a client; `fd` is this worker's from now on."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
        sock.setblocking(False)
        own = order.credentials
        account = self._accounts[order.account]
        session = Session(order.client, own, account, sock, self._limits)
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
            partial(self._reports.report, BACKLOG_BYTES, account, own),
        )
        session.holder = Holder(own, session.outbox, PeerProcess(sock, own.pid, own.began_at_ticks))
        self._router.admit(session.outbox, session.holder)
        self._give_profile(session, order.rules)
        if session.outbox.blocks and not self._begin_blocking(session):
            self._reports.report(BLOCKING, account, own)
        self._sessions[fd] = self._by_number[session.id] = session
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def _give_profile(self, session: Session, concerning: bytes) -> None:
        session.profile = self._rules.profile(unpack(concerning))
        self._router.restrict(session.outbox, session.profile.subscribe)

    def reconfigure(self, what: Reconfiguration, on_done: Callable[[], None]) -> None:
        """Go by other settings; `on_done` is called once other workers do so as well, as far as
        they wait for clients of this one."""
        limits = self._limits = what.settings.limits
        self._flood_control = what.settings.flood_control
        self.events.go_by(limits.log_interval_seconds)
        self._reports.go_by(limits.log_interval_seconds)
        self.subscriptions.client_bytes_max = limits.client_subscription_bytes_max
        self._rules.go_by(what.settings.rules, limits.rule_cache_bytes_max)
        for session in self._sessions.values():
            self._give_profile(session, what.concerning.get(session.id, b""))
            if session.backpressure is not None:
                self._give_blocker(session, session.backpressure.blocker)
        self._router.forget_routes(limits.route_cache_bytes_max)
        for session in self.waiting.everybody():
            self.turns.add(session)
        self.subscriptions.when_changed(on_done)

    def _give_blocker(self, session: Session, old: Blocker) -> None:
        """Let a client hold publishers back as its new profile says."""
        new = Blocker(session.id, old.place, old.account, session.credentials, session.profile)
        if new.pack() != old.pack():
            self.subscriptions.change_blocker(session, new)

    def _on_room(self, writer: Writer) -> None:
        """There is room for what waits for a client."""
        self.turns.add(writer, sending=True)
        self._wake_up()

    def _on_replied(self, session: Session) -> None:
        """A reply that held a client back is sent."""
        if not session.outbox.replies_waiting:
            self._serve_soon(session)

    def _inquire(self, session: Session) -> None:
        """A client wants to know what the bus has of its user: the front knows."""
        session.inquiring = True
        self._link.send(Inquiry(session.id))

    def tell(self, order: Tell) -> None:
        """The answer to an inquiry, if the client is still there."""
        session = self._by_number.get(order.client)
        if session is not None:
            session.inquiring = False
            session.outbox.reply(order.packet)
            self._serve_soon(session)

    def expel(self, order: Expel) -> None:
        """Disconnect a client because an administrator says so, if it is still there."""
        session = self._by_number.get(order.client)
        if session is not None:
            self._expel(session, Misbehaviour("kicked", order.text))

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
            Blocker(session.id, place, account.place, own, session.profile),
            account,
            self._segment,
            self._stalls,
            self.exchange.origin,
            self._statistics,
            partial(self._reports.report, HELD_TIME, account, own),
            partial(self.events.stalled, session),
        )
        self.subscriptions.begin_holding(session)
        return True

    # -- turns ---------------------------------------------------------------------------------
    def turn(self, client: Session | Writer) -> int:
        """Serve one client one batch, or send it some of its backlog; returns the work."""
        if isinstance(client, Writer):
            return self._send_backlog(client)
        return self._serve(client)

    def _send_backlog(self, writer: Writer) -> int:
        units, more = writer.outbox.send_backlog(self._limits.quantum_units)
        self.turns.charge(writer.uid, units)
        if more:
            self.turns.add(writer, sending=True)
        return units

    def _serve(self, session: Session) -> int:
        if session.sock.fileno() < 0:
            return 0  # it was given up in the course of its last turn, and left in that turn
        if session.outbox.fault is not None:
            self._expel(session, session.outbox.fault)
            return 1
        if self._is_held(session):
            return 0
        units = 1
        quantum = self._limits.quantum_units
        self._count_waiting_bytes(session, 0)
        try:
            if not session.has_work() and not self.quiescing:
                if not self._may_read(session):
                    return units
                read_bytes = session.receive()
                self._statistics.counts[BYTES_IN] += read_bytes
                units += read_bytes // _BYTES_PER_UNIT
            while units < quantum and session.has_work():
                units += self._advance(session, quantum - units)
                if self._is_held(session):
                    self._count_waiting_bytes(session, session.keep_rest())
                    self.turns.charge(session.uid, units)
                    return units
        except Misbehaviour as fault:
            self._expel(session, fault)
            return units
        self.turns.charge(session.uid, units)
        if session.has_work() or (session.more and not self.quiescing):
            self.turns.add(session)
        elif session.ended:
            self.close(session, "")
        return units

    def _is_held(self, session: Session) -> bool:
        """Whether a client is not read any further until something else has happened."""
        return session in self.waiting or bool(session.outbox.replies_waiting) or session.inquiring

    def _may_read(self, session: Session) -> bool:
        """Whether there is room for what a client sends, if it cannot be done at once either.

        While nothing waits here, nobody is asked.
        """
        if not self._waiting_bytes or session.account.may_read(self._limits.batch_bytes_max):
            return True
        self.waiting.add(session, Wait(Reason.RATE, time.monotonic_ns() + _NO_ROOM_RETRY_NS))
        self._reports.report(BACKLOG_BYTES, session.account, session.credentials)
        return False

    def _count_waiting_bytes(self, session: Session, now_bytes: int) -> None:
        """Charge a client's user for what was read of it and has to wait."""
        more = now_bytes - session.waiting_bytes
        if more:
            session.waiting_bytes = now_bytes
            session.account.count(WAITING_BYTES, more)
            self._waiting_bytes += more

    def _advance(self, session: Session, units_max: int) -> int:
        """Do the next run or step of a client's batch, unless it must wait; returns the work."""
        if session.profile.publish:
            # Every key is looked up anew: the route says nothing of who may publish.
            run = session.gather({}, partial(self._route_if_allowed, session.profile), units_max)
        else:
            cache = self._router.cache
            run = session.gather(cache.young, cache.miss, units_max)
        if run.messages:
            return self._publish(session)
        packet = session.peek()
        if packet is None:
            return 1
        try:
            done = self._commands.obey(session, packet)
        except Refusal as fault:
            self._refuse(session, fault)
            done = True
        if done:
            session.skip()
            self.waiting.got_on(session)  # it may be a message that waited, and is refused now
        else:
            self._keep_waiting(session, FOR_ROOM)
        return self._step_units

    def _publish(self, session: Session) -> int:
        wait = self.exchange.publish(session)
        if wait is None:
            self.waiting.got_on(session)
        else:
            self._keep_waiting(session, wait)
        return 1 + session.run.units

    def _keep_waiting(self, session: Session, wait: Wait) -> None:
        self.waiting.add(session, wait)
        if wait.reason is Reason.RATE:
            self._reports.report(PUBLISH_RATE, session.account, session.credentials)

    def _route_if_allowed(self, profile: Profile, key: bytes) -> Route:
        """The route of a key. Raises ClientFault for one under which such a client may publish
        nothing: `Commands` then says why."""
        route = self._router.route(key)
        if self._rules.publish_denied_by(profile, key) is not None:
            raise Refusal("not-allowed", "you may not publish under this key")
        return route

    # -- faults and ends -----------------------------------------------------------------------
    def _refuse(self, session: Session, fault: ClientFault) -> None:
        session.refused += 1
        self._statistics.refused(fault.code)
        if isinstance(fault, QuotaReached):
            self._reports.report(fault.limit, session.account, session.credentials)
        self.events.refused(session, fault)
        if session.outbox.notices:
            session.outbox.reply(error_notice(fault.code, fault.text))

    def _expel(self, session: Session, fault: ClientFault) -> None:
        """Disconnect a client that misbehaved, so that it can still read why."""
        self._statistics.refused(fault.code)
        self.events.expelled(session, fault)
        drain(session.sock, self._limits.drain_packets_max)
        if session.outbox.notices:
            session.outbox.send_last(error_notice(fault.code, fault.text))
        self.close(session, fault.code)

    def close(self, session: Session, reason: str) -> None:
        """End a session; the front closes its copy of the socket when it hears of it."""
        self.events.leaves(session)
        self.waiting.remove(session)
        self._count_waiting_bytes(session, 0)
        self.subscriptions.forget(session)
        self._router.dismiss(session.outbox)
        session.holder.close()
        self._commands.forget(session.holder)
        session.outbox.close()
        if session.backpressure is not None:
            self._stalls.give_back(session.backpressure.blocker.place)
            session.account.count(BLOCKING, -1)
        fd = session.sock.fileno()
        self._epoll.unregister(fd)
        del self._sessions[fd]
        del self._by_number[session.id]
        trio.lowlevel.notify_closing(session.sock)
        shut_down(session.sock)
        self._link.send(Gone(session.id, reason))

    def close_all(self) -> None:
        """The bus stops."""
        for session in list(self._sessions.values()):
            drain(session.sock, self._limits.drain_packets_max)
            self.close(session, "the bus stops")
