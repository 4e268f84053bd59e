"""A worker: one process that serves its share of the clients.

One task does the work: it asks its own epoll set which clients have sent something (once for all
that have), gives them turns, and when nobody is in line walks the log and sleeps. The set is
edge-triggered: readiness puts a client in line, and it stays there until its socket is empty. The
set itself is one descriptor of trio's loop, so that a thousand busy clients enter that loop once.

Beside it run the writers of clients with a backlog, a listener for the front's orders, and a pulse.
The worker ends when the front says so, and at once when the front is gone.

This module does not know the order of messages (the exchange does) or who may connect.
"""

import os
import select
import socket
from collections import Counter
from functools import partial

import trio

from sbus.broker.complaints import Complaints
from sbus.broker.exchange import Exchange
from sbus.broker.handoff import Adopt, Gone, Link, Quiesce, Quiet, Ready, lost_client
from sbus.broker.holder import Holder
from sbus.broker.outbox import Outbox
from sbus.broker.router import Router
from sbus.broker.session import Run, Session
from sbus.broker.settings import BusSettings
from sbus.broker.turns import Turns
from sbus.errors import ClientFault, Misbehaviour, Refusal
from sbus.protocol import controls
from sbus.protocol.keys import DIALECTS, check_key, check_pattern
from sbus.protocol.packets import Control, Publish, Subscribe, Unsubscribe, parse_client_packet
from sbus.protocol.secret_keys import begins_secret
from sbus.shared.segment import Segment
from sbus.unix.closing import drain, shut_down
from sbus.unix.fd_passing import DescriptorsLost
from sbus.unix.open_files import watched_processes_max
from sbus.unix.peer_process import PeerProcess

_EVENTS_PER_POLL = 256
_UNITS_PER_POLL = 64
"""Work after which whoever has sent something meanwhile gets in line; a look costs as much as one
or two units."""
_UNITS_PER_CHECKPOINT = 1_024
"""Work after which the other tasks get a look in: about a millisecond."""


class Worker:
    """Worker `number` of the bus. Takes `link_socket`, its end of the link to the front."""

    def __init__(
        self, number: int, segment: Segment, settings: BusSettings, link_socket: socket.socket
    ) -> None:
        self._number = number
        self._segment = segment
        self._limits = settings.limits
        self._flood_control = settings.flood_control
        self._dialect = DIALECTS[settings.dialect]
        self._router = Router(number, self._dialect, settings.limits)
        self._exchange = Exchange(segment, number, self._router, settings.limits)
        self._turns: Turns[Session] = Turns()
        self._sessions: dict[int, Session] = {}
        self._held: dict[int, Session] = {}
        self._watching: set[Holder] = set()
        self._watched_max = watched_processes_max()
        self._eventfd = segment.eventfds[number]
        self._epoll = select.epoll()
        self._link_socket = link_socket
        self._complaints = Complaints(settings.limits.log_interval_seconds)
        self.counts: Counter[str] = Counter()
        """Refusals, misbehaviour and what was ignored, by code."""
        self._step_units = settings.workers
        """What a packet other than a message costs: a subscription makes every worker look."""
        self._quiescing = False
        self._quiet = False
        self._stopping = False

    # -- tasks ---------------------------------------------------------------------------------
    async def run(self) -> None:
        """Serve until told to stop."""
        self._epoll.register(self._eventfd, select.EPOLLIN)
        self._segment.beat(self._number)
        self._exchange.start()
        async with trio.open_nursery() as tasks:
            self._link = Link(self._link_socket, tasks)
            tasks.start_soon(self._listen, tasks.cancel_scope)
            tasks.start_soon(self._beat)
            async with trio.open_nursery() as writers:
                self._writers = writers
                self._link.send(Ready())
                await self._serve()
                writers.cancel_scope.deadline = (
                    trio.current_time() + self._limits.stop_seconds_max / 2
                )
            for session in list(self._sessions.values()):
                drain(session.sock, self._limits.drain_packets_max)
                self._close(session, "the bus stops")
            tasks.cancel_scope.cancel()

    async def _beat(self) -> None:
        while True:
            self._segment.beat(self._number)
            await trio.sleep(self._limits.pulse_seconds)

    async def _listen(self, everything: trio.CancelScope) -> None:
        """Obey the front; when it is gone, so is the bus."""
        while True:
            try:
                order, fds = self._link.receive_order()
            except BlockingIOError:
                await self._link.wait()
                continue
            except DescriptorsLost as lost:
                self._link.send(Gone(lost_client(lost), "the worker has no descriptors left"))
                continue
            if order is None:
                everything.cancel()
                return
            if isinstance(order, Adopt):
                self._adopt(order, fds[0])
            elif isinstance(order, Quiesce):
                self._quiescing = True
            else:
                self._stopping = True
            self._segment.wake(1 << self._number)

    async def _serve(self) -> None:
        """Give turns while anybody is in line; otherwise walk the log, and sleep."""
        units = 0
        while not self._stopping:
            polled_at = -_UNITS_PER_POLL
            while units < _UNITS_PER_CHECKPOINT:
                if units - polled_at >= _UNITS_PER_POLL:
                    polled_at = units
                    self._poll()
                session = self._turns.next()
                if session is None:
                    break
                units += self._turn(session)
            leavers = self._exchange.forget_some()
            if leavers or units >= _UNITS_PER_CHECKPOINT:
                units = 0
                self._exchange.barrier()
                self._exchange.take_walked_units()
                await trio.lowlevel.checkpoint()
                continue
            if self._quiescing and not self._quiet and not self._held:
                self._quiet = True
                self._link.send(Quiet())
            if self._exchange.catch_up():
                units = 0
                await trio.lowlevel.wait_readable(self._epoll.fileno())
            units += 1 + self._exchange.take_walked_units()
        while not self._exchange.catch_up():
            await trio.lowlevel.checkpoint()

    # -- readiness -----------------------------------------------------------------------------
    def _poll(self) -> None:
        for fd, _ in self._epoll.poll(0, _EVENTS_PER_POLL):
            if fd == self._eventfd:
                os.eventfd_read(self._eventfd)
                self._retry_held()
            elif (session := self._sessions.get(fd)) is not None:
                session.more = True
                self._turns.add(session)

    def _retry_held(self) -> None:
        """Something changed: room in the log or in the table, perhaps."""
        self._exchange.flush_records()
        held, self._held = self._held, {}
        for session in held.values():
            self._turns.add(session)

    def _adopt(self, order: Adopt, fd: int) -> None:
        """Take over a client; `fd` is this worker's from now on."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
        sock.setblocking(False)
        session = Session(order.client, order.credentials, sock, self._limits)
        session.outbox = Outbox(
            sock,
            self._limits,
            self._flood_control,
            self._writers.start_soon,
            partial(self._on_replied, session),
            partial(self._serve_soon, session),
        )
        own = order.credentials
        session.holder = Holder(own, session.outbox, PeerProcess(sock, own.pid, own.began_at_ticks))
        self._router.admit(session.outbox, session.holder)
        self._sessions[fd] = session
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def _on_replied(self, session: Session) -> None:
        """A reply that held a client back is sent."""
        if not session.outbox.replies_waiting:
            self._serve_soon(session)

    def _serve_soon(self, session: Session) -> None:
        self._turns.add(session)
        self._segment.wake(1 << self._number)

    # -- turns ---------------------------------------------------------------------------------
    def _turn(self, session: Session) -> int:
        """Serve one client one batch; returns the work that it caused."""
        if session.sock.fileno() < 0:
            return 0  # it was given up in the course of its last turn, and left in that turn
        if session.outbox.fault is not None:
            self._expel(session, session.outbox.fault)
            return 1
        if session.id in self._held or session.outbox.replies_waiting:
            return 0
        units = 1
        quantum = self._limits.quantum_units
        try:
            if not session.has_work() and not self._quiescing:
                session.receive()
            while units < quantum and session.has_work():
                spent = self._advance(session, quantum - units)
                if not spent:
                    self._turns.charge(session.uid, units)
                    return units
                units += spent
        except Misbehaviour as fault:
            self._expel(session, fault)
            return units
        self._turns.charge(session.uid, units)
        if session.has_work() or (session.more and not self._quiescing):
            self._turns.add(session)
        elif session.ended:
            self._close(session, "")
        return units

    def _advance(self, session: Session, units_max: int) -> int:
        """Do the next run or step of a client's batch; 0 when the client must wait."""
        run = session.run
        if run.messages:
            run.reroute(self._router.route, session)
        else:
            cache = self._router.cache
            session.gather(cache.young, cache.miss, units_max)
        if run.messages:
            if not self._exchange.publish(session, run):
                self._held[session.id] = session
                return 0
            session.run = Run()
            return run.units
        packet = session.peek()
        if packet is None:
            return 1
        try:
            done = self._obey(session, packet)
        except Refusal as fault:
            self._refuse(session, fault)
            done = True
        if not done:
            self._held[session.id] = session
            return 0
        session.skip()
        return 0 if session.outbox.replies_waiting else self._step_units

    def _obey(self, session: Session, packet: bytes) -> bool:
        """Do what a packet other than an ordinary message says; False when it has to wait.

        Raises Refusal, Misbehaviour.
        """
        what = parse_client_packet(packet, self._dialect)
        if isinstance(what, Control):
            self._control(session, what.key)
        elif isinstance(what, Publish):
            check_key(what.key, self._dialect, self._limits)
        elif isinstance(what, Subscribe):
            check_pattern(what.pattern, self._dialect, self._limits)
            if begins_secret(what.pattern):
                self._prepare_secret(session.holder, what.pattern)
            return self._exchange.subscribe(session, what.pattern)
        elif isinstance(what, Unsubscribe):
            check_pattern(what.pattern, self._dialect, self._limits)
            if begins_secret(what.pattern):
                session.holder.check_own(what.pattern)
            if what.pattern in session.patterns:
                return self._exchange.unsubscribe(session, what.pattern)
            self.counts["unknown-unsubscription"] += 1
        return True

    def _prepare_secret(self, holder: Holder, pattern: bytes) -> None:
        """Accept a client's secret pattern. Raises Refusal, Misbehaviour."""
        holder.check_own(pattern)
        if holder not in self._watching:
            if len(self._watching) >= self._watched_max:
                raise Refusal("too-many-secret", "the bus watches as many processes as it can")
            holder.watch()
            self._watching.add(holder)
        holder.check_alive(pattern)

    def _control(self, session: Session, key: bytes) -> None:
        if key == controls.WHOAMI:
            self._exchange.barrier()
            own = session.credentials
            session.outbox.reply(controls.whoami_reply(own.gid, own.uid, own.pid))
        elif key == controls.ECHO_ON:
            session.echo = True
        elif key == controls.ECHO_OFF:
            session.echo = False
        elif key == controls.NOTICES_ON:
            session.outbox.notices = True
        elif (choice := controls.FLOOD_CONTROLS.get(key)) is not None:
            session.outbox.choose(choice)
        else:
            self.counts["unknown-control"] += 1

    # -- faults and ends -----------------------------------------------------------------------
    def _refuse(self, session: Session, fault: ClientFault) -> None:
        self.counts[fault.code] += 1
        if session.outbox.notices:
            session.outbox.reply(controls.error_notice(fault.code, fault.text))

    def _expel(self, session: Session, fault: ClientFault) -> None:
        """Disconnect a client that misbehaved, so that it can still read why."""
        self.counts[fault.code] += 1
        own = session.credentials
        self._complaints.complain(
            fault.code, own.uid, f"client of uid {own.uid}, pid {own.pid} disconnected: {fault}"
        )
        drain(session.sock, self._limits.drain_packets_max)
        if session.outbox.notices:
            session.outbox.send_last(controls.error_notice(fault.code, fault.text))
        self._close(session, fault.code)

    def _close(self, session: Session, reason: str) -> None:
        """End a session; the front closes its copy of the socket when it hears of it."""
        self._held.pop(session.id, None)
        self._exchange.forget(session)
        self._router.dismiss(session.outbox)
        session.holder.close()
        self._watching.discard(session.holder)
        session.outbox.close()
        fd = session.sock.fileno()
        self._epoll.unregister(fd)
        del self._sessions[fd]
        trio.lowlevel.notify_closing(session.sock)
        shut_down(session.sock)
        self._link.send(Gone(session.id, reason))
