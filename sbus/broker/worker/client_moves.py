"""Moving clients between workers, as the two workers see it.

The worker that is to serve a client *prepares* for it: it journals the client's patterns as its
own, and has an outbox for it that accepts nothing. Meanwhile the client's worker serves it. Then
that worker *hands the client over*: once it has delivered everything that was destined to it, it
appends a log entry and serves the client no more. The other worker serves the client from the
moment when it walks over that entry. So the place of the entry in the total order separates what
each of the two delivers:

    a message before the entry   reaches the client by the first worker, which delivered all of them
    a message behind the entry   reaches the client by the second one, which had the patterns before
    a packet of the client       is read by the first worker, or behind the entry by the second one

Nobody reads the client between the two. A user's account counts the client's subscriptions at the
worker that serves it, and for that moment nowhere. So moving a client needs no room in a quota, and
a user may exceed its quota by what is being moved.
"""

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.client_record import (
    PATTERNS_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    ClientRecord,
    UnknownVersion,
    check_version,
    decode_state,
    encode_state,
)
from sbus.broker.worker.client_state import restore_state, state_of
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.inheritance import Inheritance
from sbus.broker.worker.router import Router
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.snapshots import ClientSnapshots
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import Reason, WaitQueue
from sbus.errors import ClientFault, Refusal, SbusError
from sbus.protocol.secret_keys import begins_secret
from sbus.shared.log_block import HAND_OVER, LogBlock, build_log_block
from sbus.shared.worker_statistics import ACCEPTED, ACCEPTED_BYTES

_HAND_OVER_SECONDS_MAX = 0.05
"""How long a client that is to be handed over is not read until everything is done that must be
before. A client that does not come to rest in this time stays."""
_LIMITED_SECONDS_MAX = 1.0
"""The same for one that waits for its user's rate, and would be read no sooner anyway."""
_RETRY_SECONDS = 0.001
"""When a worker without other work looks again whether a client has come to rest."""


class _Leaving(NamedTuple):
    """A client that is to be handed over as soon as it is at rest."""

    session: Session
    mask: int
    revision: int
    since: float
    """By `time.monotonic`."""


class ClientMoves:
    """Of one worker. The router's recipient of entries that hand clients over."""

    outbox = None
    is_closed = False
    slot_at = 0

    def __init__(
        self,
        context: WorkerContext,
        router: Router,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        sessions: Sessions,
        wait_queue: WaitQueue,
    ) -> None:
        self._context = context
        self._link = context.link
        self._counts = context.statistics.counts
        self._sequencer = sequencer
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._wait_queue = wait_queue
        self.inheritance = Inheritance(context, router, sequencer, subscriptions, sessions)
        self.snapshots = ClientSnapshots(context, sequencer, subscriptions, sessions)
        self._leaving: list[_Leaving] = []
        router.set_arrivals(self)

    # -- a client of this worker ---------------------------------------------------------------
    def describe(self, command: protocol.DescribeClient) -> None:
        """Say what another worker has to know of a client."""
        session = self._sessions.find(command.client)
        if session is None:
            self._decline(command.client, "it has left")
        elif not self._can_come_to_rest(session):
            self._decline(command.client, "it waits, or messages wait for it")
        elif (
            session.subscriptions > SUBSCRIPTIONS_MAX
            or sum(map(len, session.patterns)) > PATTERNS_BYTES_MAX
        ):
            self._decline(command.client, "it has too many patterns")
        else:
            record = ClientRecord(
                revision=session.revision,
                patterns=session.patterns,
                has_backpressure=session.backpressure is not None,
            )
            self._link.send(protocol.ClientDescribed(command.client, record))

    def hand_over(self, command: protocol.HandOverClient) -> None:
        """Have another worker take over a client, as soon as what was read of it is done."""
        session = self._sessions.find(command.client)
        if session is None:
            self._decline(command.client, "it has left")
        elif session.revision != command.revision:
            self._decline(command.client, "its subscriptions have changed")
        else:
            session.is_leaving, session.is_at_rest = True, False
            mask, now = 1 << command.to, time.monotonic()
            self._leaving.append(_Leaving(session, mask, command.revision, now))

    def hand_over_rested(self, now: float) -> float:
        """Hand over the clients that have come to rest, and keep those that take too long; returns
        the seconds until this is to be called again, infinite when no client is left."""
        self._leaving = [leaving for leaving in self._leaving if not self._ends(leaving, now)]
        return _RETRY_SECONDS if self._leaving else math.inf

    def _ends(self, leaving: _Leaving, now: float) -> bool:
        """Hand a client over, or keep it; False while it has to come to rest."""
        session = leaving.session
        is_same = session.is_open() and session.revision == leaving.revision
        if is_same and self._has_handed_over(session, leaving.mask):
            self._leave(session)
            return True
        is_limited = self._wait_queue.reason(session) is Reason.RATE
        seconds_max = _LIMITED_SECONDS_MAX if is_limited else _HAND_OVER_SECONDS_MAX
        if is_same and now < leaving.since + seconds_max:
            return False
        session.is_leaving = False
        if session.is_open():
            self._sessions.resume(session)
        self._decline(session.client, "it did not come to rest")
        return True

    def _has_handed_over(self, session: Session, mask: int) -> bool:
        """Append the log entry that hands a client over, if nothing has to be done before."""
        if not self._is_at_rest(session):
            return False
        self._sequencer.barrier()
        if not self._is_at_rest(session):
            return False
        log_block = _hand_over_block(session, mask)
        return self._sequencer.hand_over(log_block, session.account.log_share)

    def _is_at_rest(self, session: Session) -> bool:
        """Whether a client could be forgotten without a trace."""
        is_waiting = session in self._wait_queue or session.has_pending()
        return not is_waiting and self._can_come_to_rest(session)

    def _can_come_to_rest(self, session: Session) -> bool:
        """Whether a client is soon at rest when it is not read any more."""
        return not (
            session.has_ended
            or self._context.receipts.has_any(session.client)
            or session.awaits_self_service
            or session.backlog_sender.is_queued
            or self._wait_queue.reason(session) is Reason.STALL
            or not session.outbox.is_flowing
        )

    def _leave(self, session: Session) -> None:
        """Another worker serves a client from now on."""
        session.outbox.leave()
        session.set_counted(False)
        self._sessions.end_serving(session)
        self._sessions.send_buffers.release(session.sock, session.account)
        self._discard(session)
        self._link.send(protocol.ClientHandedOver(session.client))

    def _discard(self, session: Session) -> None:
        self._sessions.discard(session)
        session.sock.close()

    # -- a client of another worker ------------------------------------------------------------
    def prepare(self, command: protocol.PrepareClient, fd: int) -> None:
        """Make ready to serve a client; `fd` belongs to this worker from now on.

        If the client was here before, all of its patterns are removed first: background steps are
        made in their order.
        """
        session = self._sessions.make(command.adoption, fd)
        session.outbox.leave()
        session.set_counted(False)
        self._sessions.arriving[session.client] = session
        self._subscriptions.add_background_steps(
            session.account_place, self._prepare_steps(session, command.record)
        )

    def _prepare_steps(self, session: Session, record: ClientRecord) -> Iterator[bool]:
        try:
            check_version(record.version)
            for pattern in filter(begins_secret, record.patterns):
                self._subscriptions.watch_process(session, pattern)
            yield from self._subscriptions.prepare_patterns(session, record.patterns)
            if record.has_backpressure and not self._sessions.enable_backpressure(session):
                raise Refusal("too-many-blocking", "as many clients as may hold publishers do")
        except (ClientFault, UnknownVersion) as error:
            self._decline_arrival(session, error)
        else:
            steps = self._settle_steps(session)
            self._subscriptions.add_background_steps(session.account_place, steps)

    def _settle_steps(self, session: Session) -> Iterator[bool]:
        """Wait until publishers can be held back for the client, if that is needed."""
        try:
            while session.backpressure is not None and not self._subscriptions.is_settled(session):
                yield False
        except ClientFault as error:
            self._decline_arrival(session, error)
        else:
            self._link.send(protocol.ClientPrepared(session.client))

    def _decline_arrival(self, session: Session, error: SbusError) -> None:
        self._abandon(session.client)
        self._decline(session.client, str(error))

    def deliver(self, packet: bytes, _publisher_account: int) -> None:
        """Take over the client of a log entry.

        One that is not known was to be taken over by an earlier worker of this number.
        """
        self._counts[ACCEPTED] -= 1
        self._counts[ACCEPTED_BYTES] -= len(packet)
        client, _, state = packet[len(_PREFIX) :].partition(b" ")
        session = self._sessions.arriving.pop(int(client), None)
        if session is not None:
            was_prepared = not session.is_counted
            restore_state(session, decode_state(state))
            self._sessions.begin_serving(session)
            self._context.client_events.arrives(session)
            if was_prepared:  # of one that was inherited, the front knows
                self._link.send(protocol.ClientArrived(session.client))

    leave_out = deliver  # nothing is owed for what is no outbox

    def call_off(self, client: int) -> None:
        """Serve a client if it was handed over already, and be ready for it no more otherwise.

        Its worker will append nothing from now on; what it has appended is found by walking.
        """
        self._sequencer.barrier()
        if client in self._sessions.arriving:
            self._abandon(client)
            self._link.send(protocol.MoveCalledOff(client))

    def _abandon(self, client: int) -> None:
        self._discard(self._sessions.arriving.pop(client))

    def _decline(self, client: int, why: str) -> None:
        self._link.send(protocol.MoveDeclined(client, why))


_PREFIX = b"MSG %b\0" % HAND_OVER


def _hand_over_block(session: Session, mask: int) -> LogBlock:
    """The log block with the log entry that hands over a client."""
    packet = b"%b%d %b" % (_PREFIX, session.client, encode_state(state_of(session)))
    received_us = time.monotonic_ns() // 1000
    entry = (mask, packet, len(HAND_OVER), 0)
    return build_log_block(session.publisher, received_us, [entry])
