"""Serving: what a client's turn is, on one worker.

A turn reads a batch of a client's packets, gives runs of messages their place in the order, and
has every other packet obeyed; or it sends a piece of a client's backlog. What cannot be done yet
stays with the session, and the client in the waiting room; nobody else waits for it.

This module does not know when a client has a turn, how the order comes about, nor how clients come
and go.
"""

import time
from collections.abc import Callable
from functools import partial

from sbus.broker.config.access_policy import AccessProfile, KeyRules
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.worker.client_events import ClientEvents
from sbus.broker.worker.fair_queue import FairQueue
from sbus.broker.worker.packet_handler import PacketHandler
from sbus.broker.worker.router import Route, Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.wait_queue import FOR_ROOM, Reason, Wait, WaitQueue
from sbus.errors import ClientFault, Misbehaviour, QuotaReached, Refusal
from sbus.limits import Limits
from sbus.protocol.controls import error_notice
from sbus.shared.accounts import BACKLOG_BYTES, PUBLISH_RATE, WAITING_BYTES
from sbus.shared.worker_statistics import BYTES_IN, WorkerStatistics

_LIMITED_RETRY_NS = 1_000_000_000
"""When a client that waits for its user's rate, or for a stalled client, is tried again at the
latest: an administrator may have changed a user's limits, which no worker is told."""
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


class Scheduler:
    """The turns of one worker's clients. `expel` disconnects a client for a fault, `close` ends the
    session of one that has left; `step_units` is what a packet other than a message costs."""

    def __init__(
        self,
        limits: Limits,
        router: Router,
        rules: KeyRules,
        sequencer: Sequencer,
        commands: PacketHandler,
        rate_limiter: LogRateLimiter,
        events: ClientEvents,
        statistics: WorkerStatistics,
        step_units: int,
        expel: Callable[[Session, ClientFault], None],
        close: Callable[[Session, str], None],
    ) -> None:
        self.limits = limits
        self._router = router
        self._rules = rules
        self._sequencer = sequencer
        self._commands = commands
        self._rate_limiter = rate_limiter
        self._events = events
        self._statistics = statistics
        self._step_units = step_units
        self._expel = expel
        self._close = close
        self.turns: FairQueue[Session | Writer] = FairQueue()
        self.waiting = WaitQueue(sequencer.end_holding)
        self._waiting_bytes = 0
        """What was read of all clients and has to wait."""
        self.quiescing = False
        """No client is read any further."""

    # -- readiness -----------------------------------------------------------------------------
    def retry(self) -> None:
        """Something changed: what waited for it is tried again."""
        for session in self.waiting.woken():
            self.turns.add(session)

    def retry_due(self) -> None:
        """Try again those that waited for a time that has come."""
        now_ns = time.monotonic_ns()
        if self.waiting.next_ns <= now_ns:
            for session in self.waiting.due(now_ns):
                self.turns.add(session)

    # -- turns ---------------------------------------------------------------------------------
    def turn(self, client: Session | Writer) -> int:
        """Serve one client one batch, or send it some of its backlog; returns the work."""
        if isinstance(client, Writer):
            return self._send_backlog(client)
        return self._serve(client)

    def _send_backlog(self, writer: Writer) -> int:
        units, more = writer.outbox.send_backlog(self.limits.quantum_units)
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
        quantum = self.limits.quantum_units
        self.count_waiting_bytes(session, 0)
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
                    self.count_waiting_bytes(session, session.keep_rest())
                    self.turns.charge(session.uid, units)
                    return units
        except Misbehaviour as fault:
            self._expel(session, fault)
            return units
        self.turns.charge(session.uid, units)
        if session.has_work() or (session.more and not self.quiescing):
            self.turns.add(session)
        elif session.ended:
            self._close(session, "")
        return units

    def _is_held(self, session: Session) -> bool:
        """Whether a client is not read any further until something else has happened."""
        return session in self.waiting or bool(session.outbox.replies_waiting) or session.inquiring

    def _may_read(self, session: Session) -> bool:
        """Whether there is room for what a client sends, if it cannot be done at once either.

        While nothing waits here, nobody is asked.
        """
        if not self._waiting_bytes or session.account.may_read(self.limits.batch_bytes_max):
            return True
        self.waiting.add(session, Wait(Reason.RATE, time.monotonic_ns() + _NO_ROOM_RETRY_NS))
        self._rate_limiter.log_limit_reached(BACKLOG_BYTES, session.account, session.credentials)
        return False

    def count_waiting_bytes(self, session: Session, now_bytes: int) -> None:
        """Charge a client's user for what was read of it and has to wait."""
        more = now_bytes - session.waiting_bytes
        if more:
            session.waiting_bytes = now_bytes
            session.account.count(WAITING_BYTES, more)
            self._waiting_bytes += more

    def _advance(self, session: Session, cost_max: int) -> int:
        """Publish the next messages of a client's pending packets, or handle the next other packet,
        unless it must wait; returns the cost."""
        if session.profile.publish:
            # Every key is looked up anew: the route says nothing of who may publish.
            batch = session.gather({}, partial(self._route_if_allowed, session.profile), cost_max)
        else:
            cache = self._router.cache
            batch = session.gather(cache.recent, cache.miss, cost_max)
        if batch.messages:
            wait = self._sequencer.publish(session, batch)
            session.put_back(batch)
            if wait is None:
                self.waiting.got_on(session)
            else:
                self._keep_waiting(session, wait)
            return 1 + batch.cost
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

    def _keep_waiting(self, session: Session, wait: Wait) -> None:
        if wait.reason is not Reason.ROOM:
            soon_ns = time.monotonic_ns() + _LIMITED_RETRY_NS
            wait = Wait(wait.reason, min(wait.until_ns, soon_ns), wait.account)
        self.waiting.add(session, wait)
        if wait.reason is Reason.RATE:
            self._rate_limiter.log_limit_reached(PUBLISH_RATE, session.account, session.credentials)

    def _route_if_allowed(self, profile: AccessProfile, key: bytes) -> Route:
        """The route of a key. Raises ClientFault for one under which such a client may publish
        nothing: `PacketHandler` then says why."""
        route = self._router.route(key)
        if self._rules.publish_denied_by(profile, key) is not None:
            raise Refusal("not-allowed", "you may not publish under this key")
        return route

    def _refuse(self, session: Session, fault: ClientFault) -> None:
        session.refused += 1
        self._statistics.record_refusal(fault.code)
        if isinstance(fault, QuotaReached):
            self._rate_limiter.log_limit_reached(fault.limit, session.account, session.credentials)
        self._events.refused(session, fault)
        if session.outbox.notices:
            session.outbox.reply(error_notice(fault.code, fault.text))
