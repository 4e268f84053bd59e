"""Clients of another bus become those of this one, as their snapshots say.

A worker prepares for each client as for one that is moved: its patterns are journalled, and its
outbox accepts nothing. Snapshots that come later say what has changed. Then the worker restores all
clients, and it serves them once it is thawed.
"""

import os
from collections.abc import Iterator

from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.client_record import (
    BacklogRecord,
    ClientSnapshot,
    Departure,
    ReplyRecord,
    decode_snapshot,
)
from sbus.broker.ipc.records_file import Place, RecordsFile
from sbus.broker.worker.client_state import restore_state
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.long_command import BYTES_PER_UNIT, LongCommand, pieces
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.errors import ClientFault, Misbehaviour
from sbus.protocol import receipts
from sbus.protocol.secret_keys import begins_secret


class SnapshotRestorer:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        sessions: Sessions,
        command: LongCommand,
    ) -> None:
        self._context = context
        self._sequencer = sequencer
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._command = command
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

    def map_records(self, memfd: int) -> None:
        """Use this file, which belongs to this worker from now on."""
        self._files.append(RecordsFile(memfd))
        os.close(memfd)

    def prepare(self, command: protocol.PrepareRecorded, fd: int) -> None:
        """Make ready to serve a client; `fd` belongs to this worker from now on. Once the command
        has failed, a file of records may be missing, and those behind it have other numbers."""
        if self._command.why_not:
            os.close(fd)
            return
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
            self._subscriptions.add_background_steps(session.account_place, steps)

    def _prepare_steps(self, session: Session, snapshot: ClientSnapshot) -> Iterator[bool]:
        try:
            if any(map(begins_secret, snapshot.patterns)):
                self._subscriptions.watch_again(session)
            yield from self._subscriptions.prepare_patterns(session, snapshot.patterns)
        except ClientFault as error:
            self._command.fail(str(error))
            self._preparing -= 1
            return
        is_new = snapshot.has_backpressure and session.backpressure is None
        if is_new and not self._sessions.restore_backpressure(session):
            places = self._context.settings.limits.blocking_clients_max
            self._command.fail(
                f"one worker may have {places} clients that hold publishers, and not more"
            )
        self._subscriptions.add_background_steps(session.account_place, self._settle_steps(session))

    def _settle_steps(self, session: Session) -> Iterator[bool]:
        """Wait until publishers can be held back for the client, if that is needed."""
        try:
            while session.backpressure is not None and not self._subscriptions.is_settled(session):
                yield False
        except ClientFault as error:
            self._command.fail(str(error))
        self._preparing -= 1

    def report_prepared(self, command: protocol.ReportPrepared) -> None:
        """Report when all clients are prepared, and what the workers have journalled is read here,
        if a client is likely to publish."""
        self._command.begin(command.number, self._follow_all())

    def _follow_all(self) -> Iterator[bool]:
        """Prepare for all that the files say that have come since."""
        places = [
            (file, place)
            for file in range(self._files_read, len(self._files))
            for client, place in self._files[file].places()
            if client in self._prepared and self._latest[client][0] != file
        ]
        self._files_read = len(self._files)
        for piece in pieces(places, lambda it: it[1].size // BYTES_PER_UNIT):
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
        self._command.begin(command.number, self._restore_all())

    def _restore_all(self) -> Iterator[bool]:
        first_file = self._files_read
        yield from self._follow_all()
        if self._command.why_not:
            return
        snapshots = [snapshot for file, snapshot in self._latest.values() if file >= first_file]
        for piece in pieces(snapshots, lambda _: 0):
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
            self._command.fail("the table has no room for the names of all clients")
        session.received_us = snapshot.received_us
        session.restore_pending(session.packets, snapshot.unanswered)
        session.slot.lose_packets(snapshot.untold_packets)
        if snapshot.has_unknown_loss:
            session.slot.lose_unknown()
        if snapshot.fault is not None:
            session.outbox.fault = Misbehaviour(*snapshot.fault)
        self._sessions.begin_serving(session)
        self._context.client_events.arrives(session)
        if snapshot.has_large_buffer:
            limits = self._context.settings.limits
            self._sessions.send_buffers.restore(session.sock, session.account, limits)
        self._keep_receipts(session)
        session.outbox.resume_backlog()
        if session.outbox.fault is not None:  # nothing more is delivered to it
            session.outbox.close()
        if snapshot.is_stalled and session.backpressure is not None:
            session.backpressure.stall()
        session.awaits_self_service = snapshot.awaits_self_service

    def _keep_receipts(self, session: Session) -> None:
        """Receipts that wait for a client have entries, as if it had asked for them here."""
        if not session.outbox.controls_waiting:
            return
        for item in session.outbox.record_backlog().items:
            if isinstance(item, ReplyRecord) and (told := receipts.told_in(item.packet)):
                self._context.receipts.keep_told(session.client, session.account_place, *told)

    def end(self) -> None:
        """See off the clients that have left, and forget the snapshots."""
        for adoption, fd, departure in self._departed:
            self._sessions.see_off(adoption, fd, departure)
        self._departed.clear()
        self._files.clear()
        self._files_read = 0
        self._prepared.clear()
        self._latest.clear()
