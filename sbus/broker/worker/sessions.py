"""The sessions of one worker: it adopts clients from the front, finds them, and closes them."""

import socket
import time
from collections.abc import Iterator

from sbus.broker.config.access_policy import AccessProfile, decode_rule_set
from sbus.broker.config.settings import SettingsUpdate
from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.send_times import TimedSocket
from sbus.broker.ipc.client_record import Departure
from sbus.broker.ipc.worker_protocol import AdoptClient
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.departed_clients import DepartedClients
from sbus.broker.worker.fair_queue import BacklogSender, FairQueue
from sbus.broker.worker.poller import READABLE, WRITABLE, Poller
from sbus.broker.worker.presence import Presence
from sbus.broker.worker.send_buffers import SendBuffers
from sbus.broker.worker.send_retries import SendRetries
from sbus.broker.worker.session import Connection, Session
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import WaitQueue
from sbus.errors import ClientFault, Misbehaviour
from sbus.limits import UNITS_PER_SECOND
from sbus.protocol.controls import end_notice, error_notice
from sbus.shared.accounts import BACKLOG_BYTES, BLOCKING_CLIENTS, HELD_TIME
from sbus.unix.closing import discard_unread

_ENDING_SECONDS = 0.0125
"""After which a worker that ends leaves its other clients to the next tick. To disconnect one takes
25 us, and some 500 us if it has sent a thousand packets that were not read."""


class Sessions:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        subscriptions: Subscriptions,
        fair_queue: FairQueue[Session | BacklogSender],
        wait_queue: WaitQueue,
        poller: Poller,
        presence: Presence,
    ) -> None:
        self._context = context
        self._stalls = context.stalls
        self._statistics = context.statistics
        self.client_events = context.client_events
        self._subscriptions = subscriptions
        self._fair_queue = fair_queue
        self._wait_queue = wait_queue
        self.poller = poller
        self.presence = presence
        self.send_buffers = SendBuffers()
        self.departed = DepartedClients(poller, self.send_buffers, context.link)
        self.send_retries = SendRetries(context.send_times)
        self.by_fd: dict[int, Session] = {}
        """All sessions, by the descriptors of their sockets."""
        self._by_client: dict[int, Session] = {}
        self.is_frozen = False
        """No client is read or sent to, nor told anything if this worker ends."""
        self.arriving: dict[int, Session] = {}
        """Clients that another worker serves and may hand over; by their numbers."""

    def __iter__(self) -> Iterator[Session]:
        """All sessions, in the order in which they were adopted."""
        return iter(self._by_client.values())

    def __getitem__(self, client: int) -> Session:
        return self._by_client[client]

    def find(self, client: int) -> Session | None:
        return self._by_client.get(client)

    # -- adopting ------------------------------------------------------------------------------
    def adopt(self, command: AdoptClient, fd: int) -> None:
        """Take over a client; `fd` belongs to this worker from now on."""
        session = self.make(command, fd)
        session.save_settings()
        may_hold = session.outbox.flood_control.may_hold_publishers
        if may_hold and not self.enable_backpressure(session):
            self.client_events.limit_reached(session, BLOCKING_CLIENTS)
        self.begin_serving(session)

    def make(self, command: AdoptClient, fd: int) -> Session:
        """The session of a client that is not served yet; `fd` belongs to it."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
        slot = self._context.client_slots[command.slot]
        account = self._context.accounts[command.account]
        flood_control, limits = self._context.settings.flood_control, self._context.settings.limits
        listener = _DeliveryListener(self, command.client)
        timed = TimedSocket(sock, account.place, self._context.send_times)
        outbox = Outbox(timed, flood_control, limits, account, self._statistics, listener)
        outbox.use_slot(slot)
        outbox.use_origin(self._context.origin)
        connection = Connection(command.client, command.credentials, account, sock, slot)
        session = Session(connection, outbox, self._profile(command.rules), limits)
        self._subscriptions.add_client(session)
        return session

    def begin_serving(self, session: Session) -> None:
        """From now on a client is read, and found here."""
        self.by_fd[session.sock.fileno()] = self._by_client[session.client] = session
        self.poller.add(session.sock)
        if session.outbox.fault is not None:
            self.resume(session)

    def _profile(self, rules: bytes) -> AccessProfile:
        return self._context.rules.profile(decode_rule_set(rules))

    def enable_backpressure(self, session: Session) -> bool:
        """Let a client hold publishers back from now on; False when there is no place for it, or
        its user has as many here as it leaves to others."""
        leaves_enough = session.account.own_use(BLOCKING_CLIENTS) < self._stalls.free
        return leaves_enough and self.restore_backpressure(session)

    def restore_backpressure(self, session: Session) -> bool:
        """The same for a client that had a place at another bus: its user's share does not
        matter."""
        place = self._stalls.take_place()
        if place is None:
            return False
        account, own, profile = session.account, session.credentials, session.profile
        rule = BackpressureRule(session.client, place, account.place, own, profile)
        self.hold_publishers_by(session, rule)
        self._subscriptions.add_rule(session)
        return True

    def hold_publishers_by(self, session: Session, rule: BackpressureRule) -> None:
        """Let a client that has the rule's place hold publishers back from now on."""
        account, memory, stalls = session.account, self._context.memory, self._stalls
        account.count(BLOCKING_CLIENTS, 1)
        listener = _DeliveryListener(self, session.client)
        session.enable_backpressure(
            Backpressure(rule, account, memory, stalls, self._statistics, listener)
        )

    def thaw(self) -> None:
        """Serve all clients from now on, whatever has become ready meanwhile."""
        self.is_frozen = False
        for session in self:
            self.poller.watch_room(session.sock, session.outbox.watches_room)
            if session.has_pending():
                self._fair_queue.add(session)
        self.departed.look_again()

    def see_off(self, command: AdoptClient, fd: int, departure: Departure) -> None:
        """End the connection of a client that another worker had closed; `fd` belongs to this
        worker from now on."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
        account = self._context.accounts[command.account]
        self.send_buffers.inherit(sock, account, self._context.settings.limits)
        self.departed.add(command.client, sock, account, departure.reason, departure.notice)

    # -- serving -------------------------------------------------------------------------------
    def on_ready(self, fd: int, events: int) -> None:
        """Queue the client with this descriptor if it may have sent something, and its backlog if
        its socket has room."""
        session = self.by_fd.get(fd)
        if self.is_frozen:
            return
        if session is None:
            self.departed.on_ready(fd)
            return
        if events & WRITABLE:
            self._fair_queue.add(session.backlog_sender, sending=True)
        if events & READABLE:
            session.is_readable = True
            self._fair_queue.add(session)

    def resume(self, session: Session) -> None:
        """Queue a client: what it waited for may be over."""
        self._fair_queue.add(session)
        self._context.wake()

    def enlarge_buffer(self, session: Session) -> bool:
        """Have the kernel keep more for a client; whether it does so from now on."""
        limits = self._context.settings.limits
        return self.send_buffers.enlarge(session.sock, session.account, limits)

    def retry_sends(self) -> None:
        """Queue the backlogs for which it is time to try again."""
        for session in self.send_retries.take_due():
            self._fair_queue.add(session.backlog_sender, sending=True)

    def have_backlogs(self) -> bool:
        """Whether anything waits for any client."""
        return any(not it.outbox.is_flowing and not it.outbox.is_closed for it in self)

    def reply_to_self_service(self, client: int, packet: bytes) -> None:
        """Send a client, if it is still there, what the front says about its user. One that asked
        a predecessor of this worker, too, gets one reply."""
        session = self.find(client)
        if session is not None and session.awaits_self_service and not self.is_frozen:
            session.awaits_self_service = False
            session.reply(packet)
            session.settle()
            self.resume(session)

    def forget_told(self, client: int) -> None:
        """All receipts that a client was told of are in its socket, or it has left."""
        if self._context.receipts.forget_told(client):
            self._context.wake()

    def apply_settings(self, number: int, update: SettingsUpdate) -> None:
        """Obey new settings, and report that when other workers obey them where they wait for
        clients of this one. Clients that wait are tried again."""
        self._context.apply_settings(update.settings)
        for session in (*self, *self.arriving.values()):
            session.set_profile(self._profile(update.rules_by_client.get(session.client, b"")))
            self._subscriptions.apply_profile(session)
        self._subscriptions.clear_routes()
        for session in self._wait_queue.release_all():
            self._fair_queue.add(session)
        self._subscriptions.report_applied(number)

    # -- closing -------------------------------------------------------------------------------
    def disconnect(self, client: int, text: str) -> None:
        """Disconnect a client by order of an administrator, if it is still there, or when it
        arrives. What a frozen worker does not do, the front does."""
        if self.is_frozen:
            return
        session, arriving = self.find(client), self.arriving.get(client)
        if session is not None:
            self.expel(session, Misbehaviour("kicked", text))
        elif arriving is not None:
            arriving.outbox.fault = Misbehaviour("kicked", text)

    def expel(self, session: Session, fault: ClientFault) -> int:
        """Disconnect a client for a fault, so that it can still read why. Returns the cost, which
        is charged to its user: what it has sent last is read."""
        began_at = time.perf_counter()
        self._statistics.record_refusal(fault.code)
        self.client_events.expelled(session, fault)
        self._disconnect(session, fault.code, error_notice(fault.code, fault.text))
        seconds = self._context.operations.own_time(time.perf_counter() - began_at)
        cost = 1 + int(seconds * UNITS_PER_SECOND)
        self._fair_queue.charge(session.account_place, cost)
        return cost

    def _disconnect(self, session: Session, reason: str, notice: bytes) -> None:
        """End a session; the client can read everything that was sent to it, and last this notice
        if it wants notices."""
        discard_unread(session.sock, self._context.settings.limits.drain_packets_max)
        self.close(session, reason, notice if session.outbox.wants_notices else b"")

    def close(self, session: Session, reason: str, notice: bytes = b"") -> None:
        """End a session, with this notice as the last packet; the front closes its copy of the
        socket when it hears of it."""
        session.slot.close()
        self.forget_told(session.client)
        session.outbox.close()
        self.presence.depart(session, reason)
        self.end_serving(session)
        self.discard(session)
        self.departed.add(session.client, session.sock, session.account, reason, notice)

    def end_serving(self, session: Session) -> None:
        """A client is not read any more, and not found here."""
        self.client_events.leaves(session)
        self._wait_queue.remove(session)
        self.send_retries.remove(session)
        self.poller.remove(session.sock)
        del self.by_fd[session.sock.fileno()]
        del self._by_client[session.client]
        session.fd = -1

    def discard(self, session: Session) -> None:
        """Give back what a client that is not served has here, but for its socket."""
        self._subscriptions.remove_client(session)
        session.secret_recipient.close()
        if session.backpressure is not None:
            self._stalls.give_back(session.backpressure.rule.place)
            session.account.count(BLOCKING_CLIENTS, -1)

    def end_some(self, code: str) -> bool:
        """Disconnect some clients, because the bus ends; `code` says why. Returns whether there are
        more."""
        end_at = time.perf_counter() + _ENDING_SECONDS
        for session in list(self):
            self._disconnect(session, code, end_notice(code))
            if time.perf_counter() > end_at:
                break
        return bool(self._by_client)

    def have_untold(self) -> bool:
        """Whether a client that was disconnected has no room yet for the reason."""
        return self.departed.have_untold()

    def close_all(self) -> None:
        """This worker ends. Clients that were not told why are not told. Those of a frozen worker
        are served elsewhere."""
        if self.is_frozen:
            self.departed.leave_all()
            return
        for session in list(self):
            self._disconnect(session, "its worker ended", b"")
        self.departed.forget_all()
        for session in self.arriving.values():
            self.discard(session)
            session.sock.close()


class _DeliveryListener:
    """Passes on what the outbox and the back-pressure of one client tell."""

    __slots__ = ("_client", "_sessions")

    def __init__(self, sessions: Sessions, client: int) -> None:
        self._sessions = sessions
        self._client = client

    def watch_room(self, is_wanted: bool) -> None:
        self._sessions.poller.watch_room(self._sessions[self._client].sock, is_wanted)

    def enlarge_buffer(self) -> bool:
        return self._sessions.enlarge_buffer(self._sessions[self._client])

    def retry_later(self) -> None:
        self._sessions.send_retries.wait_for_memory(self._sessions[self._client])

    def wait_for_time(self) -> None:
        session = self._sessions[self._client]
        self._sessions.send_retries.wait_for_time(session)
        self._sessions.client_events.delayed(session)

    def on_control_sent(self) -> None:
        session = self._sessions[self._client]
        if not session.outbox.controls_waiting:
            self._sessions.forget_told(session.client)
            session.slot.note_told()
            session.settle()
            self._sessions.resume(session)

    def on_fault(self) -> None:
        self._sessions.resume(self._sessions[self._client])

    def on_quota_reached(self) -> None:
        self._limit_reached(BACKLOG_BYTES)

    def on_held_time_spent(self) -> None:
        self._limit_reached(HELD_TIME)

    def on_stall(self, is_stalled: bool) -> None:
        self._sessions.client_events.stalled(self._sessions[self._client], is_stalled)

    def _limit_reached(self, limit: int) -> None:
        self._sessions.client_events.limit_reached(self._sessions[self._client], limit)
