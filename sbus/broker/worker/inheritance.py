"""Inheritance: the successor of a worker that died serves the clients of its predecessor.

The front gives it every client with its socket, then has it take over. The rest is in the shared
memory: the clients' patterns and back-pressure rules in the subscription table, and what they have
chosen in their slots. Other workers notice nothing: their indices name the worker's number.

What the log has is delivered to the clients that have not got it (`unfinished_work`). What was only
in the predecessor's memory is lost, and each client is told how much that is. If the log has not
kept everything for this worker, a client with subscriptions is told that it lost an unknown number.

    a client that the predecessor never served   is adopted as a new one
    a client that the predecessor had closed     is disconnected
    a client that left meanwhile                 is found to have left when it is read
    a client that was handed over to this        is served from the log entry on that hands it over,
      worker, which has not walked there         as the other worker delivered all that comes before
    journalled patterns without a client         are taken back: their client has left or moved away
    a journalled name of a client that the       is given back, and its departure told: also of a
      front has not any more, or of one that       client of another worker, in case that one, or
      is disconnected here                         its predecessor, has died before it could tell
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from sbus.broker.delivery.backpressure import BackpressureRule, unpack_rule
from sbus.broker.ipc.client_record import Departure
from sbus.broker.ipc.worker_protocol import AdoptClient, ClientLeft, InheritClient, TookOver
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.members import named_client
from sbus.broker.worker.router import Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.unfinished_work import Interrupted
from sbus.errors import Refusal
from sbus.protocol import receipts
from sbus.protocol.controls import error_notice, lost_notice
from sbus.protocol.packets import Control, Subscribe, Unsubscribe, parse_client_packet
from sbus.shared.client_slots import ClientSlot
from sbus.shared.compaction import LiveTable
from sbus.shared.shared_memory import TABLE_TAIL
from sbus.shared.subscription_table import (
    CLIENT_GONE,
    RULE_REMOVED,
    UNSUBSCRIBED,
    Record,
    SubscriptionTable,
)

_LOST = Refusal("packets-lost", "a worker died before the message was published")
_CLOSED = Departure(reason="it was disconnected")


class _Journal:
    """What the table has of one worker, which has its place in the shared memory: only then does a
    compaction wait until it has read its arena."""

    def __init__(self, context: WorkerContext) -> None:
        self._worker = context.worker
        self._live = LiveTable()
        table = SubscriptionTable(context.memory)
        with context.memory.lock as words:
            table.start(words)
            end = words[TABLE_TAIL]
        for record in table.read_own(context.worker, end):
            self._live.apply(record)
        self.names = {
            client: named_client(client, data) for client, data in self._live.names.items()
        }
        """Those of all clients of the bus that have one."""
        self.interest = self._live.interest(context.worker)
        """The patterns that other workers send this one messages for."""

    def patterns_of(self, client: int) -> dict[bytes, int]:
        """As they are journalled, each with its number of occurrences."""
        return dict(self._live.patterns(self._worker, client))

    def rules_of(self, client: int) -> dict[bytes, BackpressureRule]:
        """By the patterns that they are journalled with; one object for each version."""
        versions: dict[int, BackpressureRule] = {}
        rules = {}
        for packed in self._live.rules(self._worker, client):
            rule, pattern = unpack_rule(client, packed)
            rules[pattern] = versions.setdefault(rule.version, rule)
        return rules

    def records_without(self, clients: set[int]) -> Iterator[Record]:
        """Records that take back what clients other than these have."""
        for worker, client in self._live.owners():
            if client not in clients:
                for packed in self._live.rules(worker, client):
                    yield Record(RULE_REMOVED, True, worker, client, packed)
                yield Record(CLIENT_GONE, False, worker, client)


class Inheritance:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        router: Router,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        sessions: Sessions,
    ) -> None:
        self._context = context
        self._router = router
        self._sequencer = sequencer
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._clients: list[tuple[InheritClient, int]] = []
        """With their descriptors, until they are taken over."""
        self._gone: set[int] = set()
        """Clients that the predecessor has served and this worker does not."""
        self.is_awaited = True

    def add(self, command: InheritClient, fd: int) -> None:
        """A client to take over; `fd` belongs to this worker from now on."""
        self._clients.append((command, fd))

    def apply_rules(self, rules_by_client: Mapping[int, bytes]) -> None:
        """The access rules have changed: the clients to take over have these sets of them."""
        for at, (command, fd) in enumerate(self._clients):
            rules = rules_by_client.get(command.adoption.client, b"")
            adoption = msgspec.structs.replace(command.adoption, rules=rules)
            self._clients[at] = InheritClient(adoption), fd

    def decline(self, command: InheritClient, why: str) -> None:
        """A client that cannot be taken over, for this reason."""
        client = command.adoption.client
        self._gone.add(client)
        self._context.link.send(ClientLeft(client, why))

    def take_over(self) -> None:
        """Begin to serve, with the clients of the predecessor."""
        self.is_awaited = False
        with self._context.memory.lock as words:
            placed = self._context.in_flight.placed_request(words)
        if self._clients:
            interrupted = self._sequencer.unfinished.begin(self._slots())
            self._succeed_receipts(placed)
            journal = _Journal(self._context)
            self._restore_all(journal, interrupted.arrivals)
            for session in self._sessions:
                self._admit_earlier_losses(session)
            with self._before_effect(interrupted.request):
                self._resume(interrupted)
            for session in self._sessions:
                self._go_on_with_request(session)
        else:
            self._subscriptions.start()
            self._succeed_receipts(placed)
            journal = _Journal(self._context)
        self._depart_gone(journal)
        self._context.link.send(TookOver(len(self._clients)))
        self._clients.clear()

    def _succeed_receipts(self, placed: int) -> None:
        """Go on with the receipts of the predecessor, whose last request that has its place has
        this mark, once this worker looks again. It knows by now from where it walks: it delivers
        all that gets its place from here on."""
        adoptions = [command.adoption for command, _ in self._clients]
        accounts = {adoption.client: adoption.account for adoption in adoptions}
        woken = self._context.receipts.succeed(placed, self._context.client_slots, accounts)
        self._context.memory.wake(woken)
        self._context.wake()

    def _depart_gone(self, journal: _Journal) -> None:
        """Tell of the clients that have gone and have a name, in case that nobody else does."""
        for client, named in journal.names.items():
            is_here = self._sessions.find(client) or client in self._sessions.arriving
            is_there = is_here or self._context.client_slots[named.slot].is_connected(client)
            if client in self._gone or not is_there:
                self._sessions.presence.depart_unserved(named)
        self._gone.clear()

    def _slots(self) -> Iterator[ClientSlot]:
        """Of the clients that a predecessor has served."""
        for command, _ in self._clients:
            slot = self._context.client_slots[command.adoption.slot]
            if slot.is_of(command.adoption.client):
                yield slot

    def _restore_all(self, journal: _Journal, arrivals: set[int]) -> None:
        inherited: list[Session] = []
        new: list[tuple[AdoptClient, int]] = []
        served_clients, worker = self._context.memory.served_clients, self._context.worker
        for command, fd in self._clients:
            adoption = command.adoption
            served_clients[worker] = adoption.client
            slot = self._context.client_slots[adoption.slot]
            if not slot.is_of(adoption.client):
                new.append((adoption, fd))
            elif slot.is_closed:
                self._gone.add(adoption.client)
                self._sessions.see_off(adoption, fd, _CLOSED)
            else:
                inherited.append(self._restore(adoption, fd, journal))
        served_clients[worker] = 0
        clients = {session.client for session in inherited}
        self._subscriptions.take_back(journal.records_without(clients))
        self._subscriptions.take_back(
            Record(UNSUBSCRIBED, True, worker, 0, pattern)
            for pattern in journal.interest
            if not self._router.has_interest(pattern)
        )
        for session in inherited:
            if session.client in arrivals:
                self._sessions.arriving[session.client] = session
            else:
                self._begin_serving(session)
        for adoption, fd in new:
            self._sessions.adopt(adoption, fd)

    def _restore(self, command: AdoptClient, fd: int, journal: _Journal) -> Session:
        """Make the session of a client as it was."""
        session = self._sessions.make(command, fd)
        limits = self._context.settings.limits
        self._sessions.send_buffers.inherit(session.sock, session.account, limits)
        settings = session.slot.settings()
        session.echo = settings.echo
        session.outbox.wants_notices = settings.wants_notices
        session.outbox.wants_sender = settings.wants_sender
        session.outbox.leave()
        self._subscriptions.restore(session, journal.patterns_of(command.client))
        if named := journal.names.get(command.client):
            session.set_name(named.member.name, named.will)
        if rules := journal.rules_of(command.client):
            self._restore_rules(session, rules)
        self._context.memory.record_heartbeat(self._context.worker)
        return session

    def _restore_rules(self, session: Session, rules: dict[bytes, BackpressureRule]) -> None:
        """Let a client hold publishers back as it did."""
        newest = max(rules.values(), key=lambda rule: rule.version)
        self._context.stalls.claim_place(newest.place)
        self._sessions.hold_publishers_by(session, newest)
        for pattern, rule in rules.items():
            session.rule_by_pattern[pattern] = rule
            self._router.add(pattern, rule)
        self._subscriptions.add_rule(session)
        self._subscriptions.apply_profile(session)

    def _begin_serving(self, session: Session) -> None:
        outbox = session.outbox
        outbox.arrive(session.slot.settings().flood_control)
        if outbox.flood_control.may_hold_publishers and session.backpressure is None:
            self._sessions.enable_backpressure(session)
        self._sessions.begin_serving(session)

    def _admit_earlier_losses(self, session: Session) -> None:
        """Tell a client of its packets that were lost, and of what waited for it, or that nobody
        knows what it has lost."""
        slot = session.slot
        slot.lose_pending()
        if slot.untold_packets:
            self._report_lost_packets(session)
        if slot.has_unknown_loss:
            has_waiting, slot.waiting = slot.waiting > 0, 0
            self._admit_unknown_loss(session, has_waiting=has_waiting)
        elif slot.waiting:
            session.outbox.admit_loss(slot.waiting)
        self._note_told(session)

    def _admit_unknown_loss(self, session: Session, *, has_waiting: bool = False) -> None:
        """Messages may wait for a client that has undone its subscriptions."""
        if (session.patterns or has_waiting) and session.outbox.wants_notices:
            session.tell(lost_notice(None))

    def _note_told(self, session: Session) -> None:
        """A successor repeats notices that wait."""
        if not session.outbox.controls_waiting:
            session.slot.note_told()

    def _resume(self, interrupted: Interrupted) -> None:
        """Go on where the predecessor died."""
        unfinished = self._sequencer.unfinished
        outboxes = {session.slot_at: session.outbox for session in self._sessions}

        def admit_loss(slot_at: int) -> None:
            if slot_at in outboxes:  # one that is still to arrive has lost nothing here
                outboxes[slot_at].admit_loss(1)

        unfinished.finish_walk(interrupted, admit_loss)
        if interrupted.batch is None:
            return
        unfinished.admit_batch(interrupted.batch, admit_loss)
        if not interrupted.batch.is_complete:
            for session in self._sessions:
                session.slot.lose_unknown()
                self._admit_unknown_loss(session)
                self._note_told(session)
        unfinished.end_batch()

    @contextmanager
    def _before_effect(self, mark: int) -> Iterator[None]:
        """A subscription that had its place in the order, and maybe no effect, begins or ends
        behind this block; it is that of the request whose step has this mark. A message that has
        its place is not published again: its receipt is told."""
        session = next((one for one in self._sessions if one.slot.has_place(mark)), None)
        if session is None:
            yield
            return
        undo, redo = self._router.remove, self._router.add
        request = parse_client_packet(session.slot.request, self._context.dialect)
        if isinstance(request, Control):
            yield
            session.slot.forget_pending()
            return
        assert isinstance(request, Subscribe | Unsubscribe), "others are carried out once more"
        if isinstance(request, Unsubscribe):
            undo, redo = redo, undo
        undo(request.pattern, session.outbox)
        yield
        redo(request.pattern, session.outbox)
        session.slot.forget_pending()

    def _go_on_with_request(self, session: Session) -> None:
        """Have what a client requested of the predecessor carried out in the client's next turn."""
        slot = session.slot
        if slot.is_request_cut and (token := receipts.token_of(slot.request)):
            session.tell(receipts.refused(token, _LOST), is_reply=True)
        elif request := slot.request:
            session.pend(request)
            self._sessions.resume(session)

    def _report_lost_packets(self, session: Session) -> None:
        """Tell a client how many of its packets the predecessor had read and not done."""
        self._context.statistics.record_refusal("packets-lost")
        if session.outbox.wants_notices:
            lost = session.slot.untold_packets
            packets = "packet was" if lost == 1 else "packets were"
            text = f"{lost} {packets} not processed, because a worker died"
            session.tell(error_notice("packets-lost", text))
