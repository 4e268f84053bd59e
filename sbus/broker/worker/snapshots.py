"""Snapshots: the clients of one bus go on at another, which takes its place.

A worker of the old bus writes snapshots of all clients to a file several times: first between
turns, while it serves them, and last when it is frozen. Each has what has changed since the one
before, of patterns and backlogs, so what is left to the last one is little. It reads and sends
nothing from then on, unless it is thawed because the new bus could not take over.

A worker of the new bus is frozen from its start. It prepares for each client as for one that
is moved: its patterns are journalled, and its outbox accepts nothing. Then it restores all of them,
and serves them once it is thawed.

    one of the two workers is frozen at any time while both have a client's socket
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from sbus.broker.delivery.backlog_changes import changes_since
from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.client_record import (
    BacklogRecord,
    ClientSnapshot,
    Departure,
    decode_snapshot,
    encode_snapshot,
)
from sbus.broker.ipc.records_file import Place, RecordsFile, append_records
from sbus.broker.worker.client_state import restore_state, state_of
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.errors import ClientFault
from sbus.protocol.controls import BacklogOrder
from sbus.protocol.secret_keys import begins_secret

_UNITS_PER_PIECE = 1_024
_UNITS_PER_CLIENT = 64
"""To describe or to restore a client takes some 20 us, and a third of a microsecond more for each
pattern, or message in its backlog."""
_BYTES_PER_UNIT = 256
"""Of a record that is decoded."""
_UNITS_PER_CHANGE = 64
"""Of a pattern, which is journalled at the new bus."""
_UNITS_PER_MESSAGE = 2
"""That comes over in a backlog."""
_RETRY_SECONDS = 0.001
"""When a worker looks again whether clients are prepared."""


T = TypeVar("T")


class _Described(NamedTuple):
    """What the new bus knows of a client."""

    revision: int
    patterns: Mapping[bytes, int]
    pending: list[bytes]
    backlog: BacklogRecord


class ClientSnapshots:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        sessions: Sessions,
    ) -> None:
        self._context = context
        self._link = context.link
        self._sequencer = sequencer
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._described: dict[int, _Described] = {}
        self._changes: Counter[int] = Counter()
        """Units that it takes to follow what has changed, for each user."""
        self._files: list[RecordsFile] = []
        self._files_read = 0
        self._prepared: dict[int, protocol.AdoptClient] = {}
        """Clients for which this worker was made ready."""
        self._latest: dict[int, tuple[int, ClientSnapshot]] = {}
        """Their last snapshots, and the files that these are in."""
        self._departed: list[tuple[protocol.AdoptClient, int, Departure]] = []
        """Clients to be seen off, with their descriptors."""
        self._preparing = 0
        """Background changes that are to end."""
        self._will_publish = False
        self._why_not = ""
        self._work: Iterator[bool] | None = None
        """What is done in pieces: True for a piece, False where that has to wait."""
        self._number = 0
        """Of the command that is carried out in this way."""

    def go_on(self) -> float:
        """Do a piece of what takes time; returns the seconds until this is to be called again,
        infinite when nothing is left."""
        if self._work is None:
            return math.inf
        has_worked = next(self._work, None)
        if has_worked is None:
            self._work = None
            changes, most = self._changes.total(), self._changes.most_common(1)
            uid = most[0][0] if most else 0
            self._link.send(protocol.Done(self._number, self._why_not, changes, uid))
            return math.inf
        return 0.0 if has_worked else _RETRY_SECONDS

    def _begin(self, number: int, work: Iterator[bool]) -> None:
        self._number, self._work = number, work
        self._changes.clear()

    def freeze(self, command: protocol.Freeze) -> None:
        """Read from no client and send to none, but for what has its place in the order, and for
        what tells of clients that have gone."""
        self._sessions.is_frozen = True
        self._begin(command.number, self._wait_for_departures())

    def _wait_for_departures(self) -> Iterator[bool]:
        while self._sessions.presence.departures:
            yield False

    def fail(self, why_not: str) -> None:
        """Something that the next `Done` depends on was not possible."""
        self._why_not = self._why_not or why_not

    # -- at the old bus ------------------------------------------------------------------------
    def record(self, command: protocol.RecordClients, memfd: int) -> None:
        """Write snapshots to this file, which belongs to this worker from now on."""
        write = self._write_all if self._sessions.is_frozen else self._describe
        self._begin(command.number, write(memfd))

    def _describe(self, memfd: int) -> Iterator[bool]:
        """Write what has changed of all clients, which are served meanwhile."""
        try:
            for sessions in _pieces(list(self._sessions), _units_of):
                open_ones = [session for session in sessions if session.is_open()]
                append_records(memfd, (self._encode(it, self._description(it)) for it in open_ones))
                yield True
        finally:
            os.close(memfd)

    def _description(self, session: Session) -> ClientSnapshot:
        before = self._described.get(session.client, _Described(-1, {}, [], BacklogRecord()))
        patterns = before.patterns
        if session.revision != before.revision:
            patterns = dict(session.patterns)
        now, pending = session.outbox.record_backlog(), session.packets[session.done :]
        is_latest = session.outbox.flood_control.order is BacklogOrder.LATEST
        self._described[session.client] = _Described(session.revision, patterns, pending, now)
        done, new = _changes_of_pending(before.pending, pending)
        return ClientSnapshot(
            client=session.client,
            patterns=_changes_of_patterns(before.patterns, patterns),
            has_backpressure=session.backpressure is not None,
            state=state_of(session),
            pending_done=done,
            pending=new,
            backlog=changes_since(before.backlog, now, by_key=is_latest),
        )

    def _encode(self, session: Session, snapshot: ClientSnapshot) -> tuple[int, bytes]:
        data = encode_snapshot(snapshot)
        self._changes[session.uid] += (
            _UNITS_PER_CHANGE * sum(map(abs, snapshot.patterns.values()))
            + _UNITS_PER_MESSAGE * (len(snapshot.backlog.items) + len(snapshot.backlog.replaced))
            + len(data) // _BYTES_PER_UNIT
        )
        return session.client, data

    def _write_all(self, memfd: int) -> Iterator[bool]:
        """Write all that is known of all clients. All workers are frozen: nothing is published."""
        try:
            while self._context.receipts.open:  # the other workers deliver what has its place
                yield False
            self._sequencer.barrier()
            for session in list(self._sessions):
                if session.outbox.fault is None:
                    continue
                if session.name:  # that it leaves has to be told
                    self.fail("a client with a name is to be disconnected first")
                else:
                    self._sessions.expel(session, session.outbox.fault)
            for sessions in _pieces(list(self._sessions), _units_of):
                append_records(memfd, (self._encode(it, self._snapshot(it)) for it in sessions))
                yield True
            departures = self._sessions.departed.departures()
            append_records(
                memfd,
                (
                    (client, encode_snapshot(ClientSnapshot(client=client, departure=departure)))
                    for client, departure in departures
                ),
            )
            self._sequencer.share_statistics()
        finally:
            os.close(memfd)

    def _snapshot(self, session: Session) -> ClientSnapshot:
        return msgspec.structs.replace(
            self._description(session),
            received_us=session.received_us,
            unanswered=b"" if session.has_pending() else session.slot.request,
            is_stalled=session.is_stalled,
            has_large_buffer=self._sessions.send_buffers.has_large(session.sock, session.account),
            awaits_self_service=session.awaits_self_service,
        )

    # -- at the new bus ------------------------------------------------------------------------
    def map_records(self, memfd: int) -> None:
        """Use this file, which belongs to this worker from now on."""
        self._files.append(RecordsFile(memfd))
        os.close(memfd)

    def prepare(self, command: protocol.PrepareRecorded, fd: int) -> None:
        """Make ready to serve a client; `fd` belongs to this worker from now on."""
        session = self._sessions.make(command.adoption, fd)
        session.outbox.leave()
        session.set_counted(False)
        self._sessions.arriving[session.client] = session
        self._prepared[session.client] = command.adoption
        self._follow(command.file, Place(command.at, command.size))

    def _follow(self, file: int, place: Place) -> None:
        """Have a client that is prepared be as its next snapshot says."""
        snapshot = decode_snapshot(self._files[file][place])
        session = self._sessions.arriving[snapshot.client]
        session.packets = session.packets[snapshot.pending_done :] + snapshot.pending
        session.outbox.follow_backlog(snapshot.backlog)
        self._latest[snapshot.client] = file, snapshot
        self._will_publish |= snapshot.state.messages_in > 0
        if snapshot.patterns or snapshot.has_backpressure:
            self._preparing += 1
            steps = self._prepare_steps(session, snapshot)
            self._subscriptions.add_background_steps(session.uid, steps)

    def _prepare_steps(self, session: Session, snapshot: ClientSnapshot) -> Iterator[bool]:
        try:
            if any(map(begins_secret, snapshot.patterns)):
                self._subscriptions.watch_again(session)
            yield from self._subscriptions.prepare_patterns(session, snapshot.patterns)
        except ClientFault as error:
            self.fail(str(error))
            self._preparing -= 1
            return
        is_new = snapshot.has_backpressure and session.backpressure is None
        if is_new and not self._sessions.restore_backpressure(session):
            places = self._context.settings.limits.blocking_clients_max
            self.fail(f"one worker may have {places} clients that hold publishers, and not more")
        self._subscriptions.add_background_steps(session.uid, self._settle_steps(session))

    def _settle_steps(self, session: Session) -> Iterator[bool]:
        """Wait until publishers can be held back for the client, if that is needed."""
        try:
            while session.backpressure is not None and not self._subscriptions.is_settled(session):
                yield False
        except ClientFault as error:
            self.fail(str(error))
        self._preparing -= 1

    def report_prepared(self, command: protocol.ReportPrepared) -> None:
        """Report when all clients are prepared, and what the workers have journalled is read here,
        if a client is likely to publish."""
        self._begin(command.number, self._follow_all())

    def _follow_all(self) -> Iterator[bool]:
        """Prepare for all that the files say that have come since."""
        places = [
            (file, place)
            for file in range(self._files_read, len(self._files))
            for client, place in self._files[file].places()
            if client in self._prepared and self._latest[client][0] != file
        ]
        self._files_read = len(self._files)
        for piece in _pieces(places, lambda it: it[1].size // _BYTES_PER_UNIT):
            for file, place in piece:
                self._follow(file, place)
            yield True
        yield from self._wait_for_preparations()

    def _wait_for_preparations(self) -> Iterator[bool]:
        while self._preparing:
            yield False
        # Otherwise the first message would wait for that.
        while self._will_publish and not self._sequencer.read_table():
            yield True

    def restore(self, command: protocol.RestoreClients) -> None:
        """Make all clients that were prepared as they were, to be served when this worker is
        thawed."""
        self._context.statistics.add(command.counters)
        self._begin(command.number, self._restore_all())

    def _restore_all(self) -> Iterator[bool]:
        first_file = self._files_read
        yield from self._follow_all()
        if self._why_not:
            return
        snapshots = [snapshot for file, snapshot in self._latest.values() if file >= first_file]
        for piece in _pieces(snapshots, lambda _: 0):
            for snapshot in piece:
                self._restore(snapshot)
            yield True
        for client in list(self._sessions.arriving):
            os.close(self._give_up(client))

    def _give_up(self, client: int) -> int:
        """Be ready for a client no more; returns its descriptor, which the caller closes."""
        session = self._sessions.arriving.pop(client)
        session.outbox.follow_backlog(BacklogRecord())
        self._sessions.discard(session)
        return session.sock.detach()

    def _restore(self, snapshot: ClientSnapshot) -> None:
        if snapshot.departure is not None:
            adoption = self._prepared[snapshot.client]
            self._departed.append((adoption, self._give_up(snapshot.client), snapshot.departure))
            return
        session = self._sessions.arriving.pop(snapshot.client)
        restore_state(session, snapshot.state)
        if not self._sessions.presence.journal_arrival(session):
            self.fail("the table has no room for the names of all clients")
        session.received_us = snapshot.received_us
        session.restore_pending(session.packets, snapshot.unanswered)
        self._sessions.begin_serving(session)
        self._context.client_events.arrives(session)
        if snapshot.has_large_buffer:
            limits = self._context.settings.limits
            self._sessions.send_buffers.restore(session.sock, session.account, limits)
        session.outbox.resume_backlog()
        if snapshot.is_stalled and session.backpressure is not None:
            session.backpressure.stall()
        session.awaits_self_service = snapshot.awaits_self_service

    # -- at either -----------------------------------------------------------------------------
    def thaw(self) -> None:
        """Serve all clients that are here."""
        self._work, self._why_not = None, ""  # of a hand-over that was given up
        self._files.clear()
        self._files_read = 0
        for known in (self._described, self._prepared, self._latest):
            known.clear()
        self._sessions.thaw()
        for adoption, fd, departure in self._departed:
            self._sessions.see_off(adoption, fd, departure)
        self._departed.clear()
        for session in self._sessions:
            if session.awaits_self_service:
                self._link.send(protocol.SelfServiceRequest(session.client))


def _changes_of_patterns(
    before: Mapping[bytes, int], now: Mapping[bytes, int]
) -> Mapping[bytes, int]:
    """How many more of each there are now."""
    if before is now:
        return {}
    if not before:
        return now
    changed = {pattern for pattern, _ in before.items() ^ now.items()}
    return {pattern: now.get(pattern, 0) - before.get(pattern, 0) for pattern in changed}


def _changes_of_pending(before: list[bytes], now: list[bytes]) -> tuple[int, list[bytes]]:
    """How many of the packets from before are done, and those behind the others."""
    done = len(before) - len(now)
    if done >= 0 and before[done:] == now:
        return done, []
    return len(before), now


def _units_of(session: Session) -> int:
    """What it takes to describe a client, besides what every client does."""
    waiting = session.outbox.statistics()
    size_bytes = waiting.backlog_bytes + sum(map(len, session.packets))
    return len(session.patterns) + waiting.backlog + size_bytes // _BYTES_PER_UNIT


def _pieces(items: Iterable[T], units: Callable[[T], int]) -> Iterator[list[T]]:
    """Clients, in lists that take about as long as each other; `units` is what each takes besides
    what every client does."""
    piece: list[T] = []
    sum_units = 0
    for item in items:
        piece.append(item)
        sum_units += _UNITS_PER_CLIENT + units(item)
        if sum_units >= _UNITS_PER_PIECE:
            yield piece
            piece, sum_units = [], 0
    if piece:
        yield piece
