"""Snapshots: the clients of one bus go on at another, which takes its place.

A worker of the old bus writes a snapshot of every client to a file twice: first between turns,
while it serves them, so that the new bus can prepare for their patterns; then when it is frozen,
with the patterns of those that have changed since. It reads and sends nothing from then on, unless
it is thawed because the new bus could not take over.

A worker of the new bus is frozen from its start. It prepares for each client as for one that
is moved: its patterns are journalled, and its outbox accepts nothing. Then it restores all of them,
and serves them once it is thawed.

    one of the two workers is frozen at any time while both have a client's socket
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.client_record import (
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
from sbus.shared.accounts import BLOCKING_CLIENTS

_UNITS_PER_PIECE = 1_024
_UNITS_PER_CLIENT = 64
"""To describe or to restore a client takes some 20 us, and a third of a microsecond more for each
pattern, or message in its backlog."""
_BYTES_PER_UNIT = 256
"""Of a record that is decoded."""
_RETRY_SECONDS = 0.001
"""When a worker looks again whether clients are prepared."""


T = TypeVar("T")


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
        self._described: dict[int, int] = {}
        """The revisions of the clients whose patterns were written."""
        self._files: list[RecordsFile] = []
        self._prepared: dict[int, tuple[protocol.AdoptClient, int]] = {}
        """Clients for which this worker was made ready, with the revisions of their patterns."""
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
            self._link.send(protocol.Done(self._number, self._why_not))
            return math.inf
        return 0.0 if has_worked else _RETRY_SECONDS

    def _begin(self, number: int, work: Iterator[bool]) -> None:
        self._number, self._work = number, work

    def freeze(self, command: protocol.Freeze) -> None:
        """Read from no client and send to none, but for what has its place in the order."""
        self._sessions.is_frozen = True
        self._link.send(protocol.Done(command.number))

    def fail(self, why_not: str) -> None:
        """Something that the next `Done` depends on was not possible."""
        self._why_not = self._why_not or why_not

    # -- at the old bus ------------------------------------------------------------------------
    def record(self, command: protocol.RecordClients, memfd: int) -> None:
        """Write snapshots to this file, which belongs to this worker from now on."""
        write = self._write_all if self._sessions.is_frozen else self._describe
        self._begin(command.number, write(memfd))

    def _describe(self, memfd: int) -> Iterator[bool]:
        """Write the patterns of all clients, which are served meanwhile."""
        self._described.clear()
        try:
            for sessions in _pieces(list(self._sessions), lambda it: len(it.patterns)):
                open_ones = [session for session in sessions if session.is_open()]
                append_records(memfd, map(self._description, open_ones))
                yield True
        finally:
            os.close(memfd)

    def _description(self, session: Session) -> tuple[int, bytes]:
        self._described[session.client] = session.revision
        snapshot = ClientSnapshot(
            client=session.client,
            revision=session.revision,
            patterns=session.patterns,
            has_backpressure=session.backpressure is not None,
            state=state_of(session),
        )
        return session.client, encode_snapshot(snapshot)

    def _write_all(self, memfd: int) -> Iterator[bool]:
        """Write all that is known of all clients. All workers are frozen, so nothing is appended to
        the log behind this."""
        try:
            self._sequencer.barrier()
            for session in list(self._sessions):
                if session.outbox.fault is not None:
                    self._sessions.expel(session, session.outbox.fault)
            for sessions in _pieces(
                list(self._sessions), lambda it: it.outbox.statistics().backlog
            ):
                append_records(memfd, map(self._snapshot, sessions))
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

    def _snapshot(self, session: Session) -> tuple[int, bytes]:
        is_described = self._described.get(session.client) == session.revision
        snapshot = ClientSnapshot(
            client=session.client,
            revision=session.revision,
            patterns=None if is_described else session.patterns,
            has_backpressure=session.backpressure is not None,
            state=state_of(session),
            pending=session.packets[session.done :],
            received_us=session.received_us,
            unanswered=b"" if session.has_pending() else session.slot.request,
            backlog=session.outbox.record_backlog(),
            is_stalled=session.is_stalled,
            has_large_buffer=self._sessions.send_buffers.has_large(session.sock, session.account),
            awaits_self_service=session.awaits_self_service,
        )
        return session.client, encode_snapshot(snapshot)

    # -- at the new bus ------------------------------------------------------------------------
    def map_records(self, memfd: int) -> None:
        """Use this file, which belongs to this worker from now on."""
        self._files.append(RecordsFile(memfd))
        os.close(memfd)

    def prepare(self, command: protocol.PrepareRecorded, fd: int) -> None:
        """Make ready to serve a client; `fd` belongs to this worker from now on."""
        snapshot = self._read(command.file, Place(command.at, command.size))
        self._prepare(command.adoption, fd, snapshot)

    def _read(self, file: int, place: Place) -> ClientSnapshot:
        return decode_snapshot(self._files[file][place])

    def _prepare(self, adoption: protocol.AdoptClient, fd: int, snapshot: ClientSnapshot) -> None:
        session = self._sessions.make(adoption, fd)
        session.outbox.leave()
        session.set_counted(False)
        self._sessions.arriving[session.client] = session
        self._prepared[session.client] = adoption, snapshot.revision
        self._preparing += 1
        self._will_publish |= snapshot.state.messages_in > 0
        self._subscriptions.add_background_steps(session, self._prepare_steps(session, snapshot))

    def _prepare_steps(self, session: Session, snapshot: ClientSnapshot) -> Iterator[bool]:
        patterns = snapshot.patterns or {}
        for pattern in patterns:
            with suppress(ClientFault):  # then its process counts as ended
                self._subscriptions.watch_processes(session, (pattern,))
        try:
            yield from self._subscriptions.prepare_patterns(session, patterns)
        except ClientFault as error:
            self.fail(str(error))
            self._preparing -= 1
            return
        if snapshot.has_backpressure and not self._sessions.enable_backpressure(session):
            self._context.client_events.limit_reached(session, BLOCKING_CLIENTS)
        self._subscriptions.add_background_steps(session, self._settle_steps(session))

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
        self._begin(command.number, self._wait_for_preparations())

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
        self._begin(command.number, self._restore_all(command.files))

    def _restore_all(self, files: list[int]) -> Iterator[bool]:
        snapshots: list[ClientSnapshot] = []
        own = [
            (file, place)
            for file in files
            for client, place in self._files[file].places()
            if client in self._prepared
        ]
        for places in _pieces(own, lambda it: it[1].size // _BYTES_PER_UNIT):
            for file, place in places:
                snapshots.append(self._read(file, place))
                self._catch_up(snapshots[-1])
            yield True
        yield from self._wait_for_preparations()
        if self._why_not:
            return
        for piece in _pieces(snapshots, lambda it: len(it.backlog.items)):
            for snapshot in piece:
                if snapshot.departure is None:
                    self._restore(snapshot)
            yield True
        for client in list(self._sessions.arriving):
            os.close(self._give_up(client))

    def _catch_up(self, snapshot: ClientSnapshot) -> None:
        """Prepare a client anew, if its patterns have changed since it was described."""
        adoption, revision = self._prepared[snapshot.client]
        if snapshot.departure is not None:
            fd = self._give_up(snapshot.client)
            self._departed.append((adoption, fd, snapshot.departure))
        elif snapshot.revision != revision:
            # What was journalled is taken back by earlier background steps of the same user.
            self._prepare(adoption, self._give_up(snapshot.client), snapshot)

    def _give_up(self, client: int) -> int:
        """Be ready for a client no more; returns its descriptor, which the caller closes."""
        session = self._sessions.arriving.pop(client)
        self._sessions.discard(session)
        return session.sock.detach()

    def _restore(self, snapshot: ClientSnapshot) -> None:
        session = self._sessions.arriving.pop(snapshot.client)
        restore_state(session, snapshot.state)
        session.received_us = snapshot.received_us
        session.restore_pending(snapshot.pending, snapshot.unanswered)
        self._sessions.begin_serving(session)
        self._context.client_events.arrives(session)
        if snapshot.has_large_buffer:
            limits = self._context.settings.limits
            self._sessions.send_buffers.restore(session.sock, session.account, limits)
        session.outbox.restore_backlog(snapshot.backlog)
        if snapshot.is_stalled and session.backpressure is not None:
            session.backpressure.stall()
        session.awaits_self_service = snapshot.awaits_self_service

    # -- at either -----------------------------------------------------------------------------
    def thaw(self) -> None:
        """Serve all clients that are here."""
        self._files.clear()
        self._prepared.clear()
        self._sessions.thaw()
        for adoption, fd, departure in self._departed:
            self._sessions.see_off(adoption, fd, departure)
        self._departed.clear()
        for session in self._sessions:
            if session.awaits_self_service:
                self._link.send(protocol.SelfServiceRequest(session.client))


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
