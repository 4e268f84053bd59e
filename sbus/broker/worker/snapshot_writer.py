"""Snapshots of the clients of a bus that another one is to replace.

A worker writes snapshots of all its clients to a file several times: first between turns, while it
serves them, and last when it is frozen. Each has what has changed since the one before, of patterns
and backlogs, so what is left to the last one is little.
"""

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from sbus.broker.delivery.backlog_changes import changes_since
from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.client_record import BacklogRecord, ClientSnapshot, encode_snapshot
from sbus.broker.ipc.records_file import append_records
from sbus.broker.worker.client_state import state_of
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.long_command import BYTES_PER_UNIT, LongCommand, pieces
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.protocol.controls import BacklogOrder

_UNITS_PER_CHANGE = 64
"""Of a pattern, which is journalled at the new bus."""
_UNITS_PER_MESSAGE = 2
"""That comes over in a backlog."""


class _Described(NamedTuple):
    """What the new bus knows of a client."""

    revision: int
    patterns: Mapping[bytes, int]
    pending: list[bytes]
    backlog: BacklogRecord


class SnapshotWriter:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        sequencer: Sequencer,
        sessions: Sessions,
        command: LongCommand,
    ) -> None:
        self._context = context
        self._sequencer = sequencer
        self._sessions = sessions
        self._command = command
        self._described: dict[int, _Described] = {}

    def forget(self) -> None:
        """The new bus knows nothing of the clients any more."""
        self._described.clear()

    def record(self, command: protocol.RecordClients, memfd: int) -> None:
        """Write snapshots to this file, which belongs to this worker from now on."""
        write = self._write_all if self._sessions.is_frozen else self._describe
        self._command.begin(command.number, write(memfd))

    def _describe(self, memfd: int) -> Iterator[bool]:
        """Write what has changed of all clients, which are served meanwhile."""
        try:
            for sessions in pieces(list(self._sessions), _units_of):
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
        self._command.changes[session.account.uid] += (
            _UNITS_PER_CHANGE * sum(map(abs, snapshot.patterns.values()))
            + _UNITS_PER_MESSAGE * (len(snapshot.backlog.items) + len(snapshot.backlog.replaced))
            + len(data) // BYTES_PER_UNIT
        )
        return session.client, data

    def _write_all(self, memfd: int) -> Iterator[bool]:
        """Write all that is known of all clients. All workers are frozen: nothing is published."""
        try:
            while self._context.receipts.open:  # the other workers deliver what has its place
                yield False
            self._sequencer.barrier()
            for sessions in pieces(list(self._sessions), _units_of):
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
        fault = session.outbox.fault
        return msgspec.structs.replace(
            self._description(session),
            received_us=session.received_us,
            unanswered=b"" if session.has_pending() else session.slot.request,
            is_stalled=session.is_stalled,
            has_large_buffer=self._sessions.send_buffers.has_large(session.sock, session.account),
            awaits_self_service=session.awaits_self_service,
            untold_packets=session.slot.untold_packets,
            has_unknown_loss=session.slot.has_unknown_loss,
            fault=None if fault is None else (fault.code, fault.text),
        )


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
    return len(session.patterns) + waiting.backlog + size_bytes // BYTES_PER_UNIT
