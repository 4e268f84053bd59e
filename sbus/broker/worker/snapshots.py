"""The clients of one bus go on at another, which takes its place.

A worker of the old bus writes snapshots of its clients (`snapshot_writer`), the last of them when
it is frozen. It reads and sends nothing from then on, unless it is thawed because the new bus could
not take over. A worker of the new bus is frozen from its start, and restores the clients
(`snapshot_restorer`).

    one of the two workers is frozen at any time while both have a client's socket
"""

from collections.abc import Iterator

from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.long_command import LongCommand
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.snapshot_restorer import SnapshotRestorer
from sbus.broker.worker.snapshot_writer import SnapshotWriter
from sbus.broker.worker.subscriptions import Subscriptions


class ClientSnapshots:
    """Of one worker, at either bus."""

    def __init__(
        self,
        context: WorkerContext,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        sessions: Sessions,
    ) -> None:
        self._link = context.link
        self._sessions = sessions
        self.command = LongCommand(context.link)
        self.writer = SnapshotWriter(context, sequencer, sessions, self.command)
        self.restorer = SnapshotRestorer(context, sequencer, subscriptions, sessions, self.command)

    def freeze(self, command: protocol.Freeze) -> None:
        """Read from no client and send to none, but for what has its place in the order, and for
        what tells of clients that have gone."""
        self._sessions.is_frozen = True
        self.command.begin(command.number, self._wait_for_departures())

    def _wait_for_departures(self) -> Iterator[bool]:
        while self._sessions.presence.departures:
            yield False

    def thaw(self) -> None:
        """Serve all clients that are here."""
        self.command.give_up()  # of a hand-over that was given up
        self.writer.forget()
        self._sessions.thaw()
        self.restorer.end()
        for session in self._sessions:
            if session.awaits_self_service:
                self._link.send(protocol.SelfServiceRequest(session.client))
