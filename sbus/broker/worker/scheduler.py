"""The scheduler gives a worker's clients turns.

In a turn a client's next packets are read and handled, or a piece of its backlog is sent. A client
whose packet has to wait goes to the wait queue and keeps its pending packets, so that no other
client waits for it.
"""

import time

from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.fair_queue import BacklogSender, FairQueue
from sbus.broker.worker.packet_handler import PacketHandler
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.wait_queue import Reason, Wait, WaitQueue
from sbus.errors import Misbehaviour
from sbus.limits import UNITS_PER_SECOND
from sbus.shared.accounts import BACKLOG_BYTES, PUBLISH_RATE

_LIMITED_RETRY_NS = 1_000_000_000
"""When a client that waits for its user's rate, or for a stalled client, is tried again at the
latest: an administrator may have changed a user's limits, which no worker is told."""
_WAITING_BYTES_RETRY_NS = 50_000_000
"""When a client is tried again whose user has too much waiting to be read further."""
_UNCOUNTED_BYTES_MAX = 16 * 1024
"""What is read in a turn and not handled in it is not counted if it is so little: counting costs as
much as some messages."""


class Scheduler:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        sequencer: Sequencer,
        packet_handler: PacketHandler,
        sessions: Sessions,
        fair_queue: FairQueue[Session | BacklogSender],
        wait_queue: WaitQueue,
    ) -> None:
        self._context = context
        self._client_events = context.client_events
        self._sequencer = sequencer
        self._packet_handler = packet_handler
        self._sessions = sessions
        self._fair_queue = fair_queue
        self._wait_queue = wait_queue
        self._is_quiescing = False
        """No client is read any more."""
        self._has_quiesced = False

    # -- waiting clients -----------------------------------------------------------------------
    def retry_woken(self) -> None:
        """There may be room in the log, in the table or at a stalled client; and receipts may be
        complete."""
        self._packet_handler.tell_complete_receipts()
        for session in self._wait_queue.release_woken():
            self._fair_queue.add(session)

    def retry_due(self) -> None:
        """Try again the clients that waited for a time that has come."""
        self._sessions.retry_sends()
        if self._wait_queue.has_timers():
            for session in self._wait_queue.release_due(time.monotonic_ns()):
                self._fair_queue.add(session)

    def seconds_until_due(self) -> float:
        """Time until `retry_due` has something to do; infinite when it never has."""
        return min(
            self._wait_queue.seconds_until_due(), self._sessions.send_retries.seconds_until_due()
        )

    def quiesce(self) -> None:
        """Read no more from any client."""
        self._is_quiescing = True

    def has_quiesced(self) -> bool:
        """Whether nothing more is published here; true once, because the front is told once."""
        if not self._is_quiescing or self._has_quiesced or self._wait_queue.has_room_waiters():
            return False
        self._has_quiesced = True
        return True

    # -- turns ---------------------------------------------------------------------------------
    def charge(self, account_place: int, cost: int) -> None:
        """Charge a user for work outside of turns."""
        self._fair_queue.charge(account_place, cost)

    def give_turns(self, cost_max: int) -> int:
        """Give turns until they have cost this much or no client is ready; returns the cost."""
        cost = 0
        while cost < cost_max:
            ready = self._fair_queue.next()
            if ready is None:
                if not self._wait_queue.has_wakeable():
                    self._fair_queue.forget_charges()
                break
            cost += self._serve(ready) if isinstance(ready, Session) else self._send_backlog(ready)
        return cost

    def poll(self, poller: Poller, seconds_max: float) -> list[tuple[int, int]]:
        """Sleep until a descriptor is ready, or the time is up. No client is ready when a worker
        sleeps, so one that then is the only one may be served here, without a turn."""
        if not seconds_max:
            return poller.poll(0)
        if self._is_quiescing or self._wait_queue.waiting_bytes:
            return self._context.fan_out_times.sleep_in(poller.poll, seconds_max)
        quantum = self._context.settings.limits.quantum_units
        return self._sequencer.poll(poller, self._sessions.by_fd, seconds_max, quantum)

    def give_backlog_turn(self) -> bool:
        """Skip clients that are to be read, and send a piece of the next backlog; False when no
        client is ready."""
        ready = self._fair_queue.next()
        if isinstance(ready, BacklogSender):
            self._send_backlog(ready)
        return ready is not None

    def _send_backlog(self, sender: BacklogSender) -> int:
        began_at, cpu_at_begin = time.perf_counter(), time.thread_time()
        cost, has_more = sender.outbox.send_backlog(self._context.settings.limits.quantum_units)
        seconds = time.perf_counter() - began_at
        self._context.operations.record("backlog", seconds, cpu_at_begin=cpu_at_begin)
        own_seconds = time.thread_time() - cpu_at_begin
        cost = max(cost, int(own_seconds * UNITS_PER_SECOND))  # a filter may make sends slow
        self._fair_queue.charge(sender.account_place, cost)
        if has_more:
            self._fair_queue.add(sender, sending=True)
        return cost

    def _serve(self, session: Session) -> int:
        """Read a client and handle its packets, until they have cost a quantum."""
        if not session.is_open():
            return 0  # it was disconnected during its last turn
        if session.outbox.fault is not None:
            return self._sessions.expel(session, session.outbox.fault)
        if self._must_wait(session):
            return 0
        served_clients, worker = self._context.memory.served_clients, self._context.worker
        served_clients[worker] = session.client
        cost = self._serve_turn(session)
        served_clients[worker] = 0
        return cost

    def _serve_turn(self, session: Session) -> int:
        session.is_at_rest = False
        cost = 1
        quantum = self._context.settings.limits.quantum_units
        was_counted, bytes_in = session.waiting_bytes, session.bytes_in
        self._wait_queue.count_waiting(session, 0)
        try:
            if not session.has_pending() and not self._is_quiescing and not self._may_read(session):
                return cost
            if session.has_pending() or not self._is_quiescing:
                cost = self._serve_ordinary(session, cost, quantum)
            while cost < quantum and session.has_pending():
                cost += self._handle(session, quantum - cost)
                if self._must_wait(session):
                    self._wait_queue.count_waiting(session, session.forget_done())
                    self._fair_queue.charge(session.account_place, cost)
                    return cost
                if self._may_read_on(session):
                    cost = self._serve_ordinary(session, cost, quantum)
        except Misbehaviour as fault:
            self._fair_queue.charge(session.account_place, cost)
            return cost + self._sessions.expel(session, fault)
        self._fair_queue.charge(session.account_place, cost)
        if session.has_pending():
            if was_counted or session.bytes_in - bytes_in > _UNCOUNTED_BYTES_MAX:
                self._wait_queue.count_waiting(session, session.forget_done())
            self._fair_queue.add(session)
        elif session.is_readable and not self._is_quiescing:
            self._fair_queue.add(session)
        elif session.has_ended:
            self._sessions.close(session, "")
        else:
            session.is_at_rest = not session.is_leaving
        return cost

    def _serve_ordinary(self, session: Session, cost: int, cost_max: int) -> int:
        """Do what is ordinary; returns the cost of the turn so far."""
        before = session.messages_in
        cost = self._sequencer.serve(session, cost, cost_max)
        if session.messages_in > before:
            self._wait_queue.record_success(session)
        return cost

    def _must_wait(self, session: Session) -> bool:
        """Whether a client is not read until something else has happened."""
        return session in self._wait_queue or session.awaits_reply

    def _may_read(self, session: Session) -> bool:
        """Whether the user's account has room for what a client sends, if that has to wait.

        While no client's packets wait, no account is asked.
        """
        if session.is_leaving:
            return False
        bytes_max = self._context.settings.limits.batch_bytes_max
        if not self._wait_queue.waiting_bytes or session.account.may_read(bytes_max):
            return True
        retry_ns = time.monotonic_ns() + _WAITING_BYTES_RETRY_NS
        self._wait_queue.add(session, Wait(Reason.RATE, retry_ns))
        self._client_events.limit_reached(session, BACKLOG_BYTES)
        return False

    def _may_read_on(self, session: Session) -> bool:
        """Whether to read a client again in its turn, which has done what was read."""
        is_done = session.is_readable and not session.has_pending()
        return is_done and not self._is_quiescing and self._may_read(session)

    def _handle(self, session: Session, cost_max: int) -> int:
        """Handle the next pending packets, unless they have to wait; returns the cost."""
        cost, wait = self._packet_handler.handle_next(session, cost_max)
        if wait is None:
            self._wait_queue.record_success(session)
            return cost
        if wait.reason is not Reason.ROOM:
            soon_ns = time.monotonic_ns() + _LIMITED_RETRY_NS
            wait = Wait(wait.reason, min(wait.until_ns, soon_ns), wait.account_place)
        self._wait_queue.add(session, wait)
        if wait.reason is Reason.RATE:
            self._client_events.limit_reached(session, PUBLISH_RATE)
        return cost
