"""A worker carries out the commands of the front."""

import os
import select
import time

from sbus.broker.config.settings import read_memfd
from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.worker_link import lost_command
from sbus.broker.worker.client_moves import ClientMoves
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.query_handler import QueryHandler
from sbus.broker.worker.scheduler import Scheduler
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.streams import WorkerStreams
from sbus.protocol.events import WorkerGivesUp
from sbus.unix.fd_passing import DescriptorsLost

_COMMANDS_PER_TICK = 4
"""Users have no turns in the link, so what waits there is taken quickly. With 16, clients that
subscribe to the same were adopted faster than served, and what they published had a large fan-out.
"""

_NO_DESCRIPTORS = "the worker has no descriptors left"


class CommandHandler:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        sessions: Sessions,
        moves: ClientMoves,
        streams: WorkerStreams,
        query_handler: QueryHandler,
        scheduler: Scheduler,
    ) -> None:
        self._context = context
        self._link = context.link
        self._emitter = context.emitter
        self._sessions = sessions
        self._moves = moves
        self._streams = streams
        self._query_handler = query_handler
        self._scheduler = scheduler
        self.end_code = ""
        """Why the bus ends, once it does: the worker delivers what is left, and ends."""
        self.front_has_ended = False
        self.has_left = False
        """Another bus serves the clients: the worker ends at once."""

    def receive(self) -> bool:
        """Carry out some commands: adoptions, and the first of another kind, which may take longer.
        False when this worker must end at once, because the front has ended or a command came
        incomplete."""
        for _ in range(_COMMANDS_PER_TICK):
            try:
                command, fds = self._link.receive_command()
            except BlockingIOError:
                break
            except DescriptorsLost as lost:
                return self._decline(lost_command(lost))
            if command is None:
                self.front_has_ended = True
                return False
            began_at = time.perf_counter()
            self._carry_out(command, fds)
            if not isinstance(command, protocol.TakeOver):  # the front says how long that took
                seconds = time.perf_counter() - began_at
                self._context.operations.record("command", seconds, type(command).__name__)
            if not isinstance(command, protocol.AdoptClient):
                break
        return True

    def take_over(self) -> bool:
        """Carry out commands until this worker has taken over from a predecessor; False when it
        must end at once."""
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        heartbeat_ms = self._context.settings.limits.heartbeat_seconds * 1_000
        while self._moves.inheritance.is_awaited:
            self._context.memory.record_heartbeat(self._context.worker)
            if self.end_code or (poll.poll(heartbeat_ms) and not self.receive()):
                return False
        return True

    def go_on(self, now: float) -> float:
        """Go on with the commands that take time; returns the seconds until the next call."""
        return min(self._moves.hand_over_rested(now), self._moves.snapshots.command.go_on())

    def _carry_out(self, command: protocol.WorkerCommand, fds: list[int]) -> None:
        match command:
            case protocol.AdoptClient():
                self._sessions.adopt(command, fds[0])
            case protocol.InheritClient():
                self._moves.inheritance.add(command, fds[0])
            case protocol.TakeOver():
                self._moves.inheritance.take_over()
            case protocol.DescribeClient():
                self._moves.describe(command)
            case protocol.PrepareClient():
                self._moves.prepare(command, fds[0])
            case protocol.HandOverClient():
                self._moves.hand_over(command)
            case protocol.CallOffMove():
                self._moves.call_off(command.client)
            case protocol.RecordClients():
                self._moves.snapshots.writer.record(command, fds[0])
            case protocol.Freeze():
                self._moves.snapshots.freeze(command)
            case protocol.Thaw():
                self._moves.snapshots.thaw()
            case protocol.MapRecords():
                self._moves.snapshots.restorer.map_records(fds[0])
            case protocol.PrepareRecorded():
                self._moves.snapshots.restorer.prepare(command, fds[0])
            case protocol.ReportPrepared():
                self._moves.snapshots.restorer.report_prepared(command)
            case protocol.RestoreClients():
                self._moves.snapshots.restorer.restore(command)
            case protocol.EndSilently():
                self.has_left = self._sessions.is_frozen = True
            case protocol.StartSampling():
                self._streams.start_sampling()
            case protocol.StopSampling():
                self._streams.stop_sampling()
            case protocol.DisconnectClient():
                self._sessions.disconnect(command.client, command.text)
            case protocol.SelfServiceReply():
                self._sessions.reply_to_self_service(command.client, command.packet)
            case protocol.ApplySettings():
                update = read_memfd(fds[0])
                os.close(fds[0])
                self._moves.inheritance.apply_rules(update.rules_by_client)
                self._sessions.apply_settings(command.number, update)
            case protocol.RunQuery():
                reply = self._query_handler.answer(command.query)
                self._link.send(protocol.QueryReply(command.number, reply))
            case protocol.StartStream():
                self._streams.start_stream(command, fds[0])
            case protocol.StopStream():
                self._streams.stop_stream(command.stream)
            case protocol.Quiesce():
                self._scheduler.quiesce()
            case protocol.Stop():
                self.end_code = command.code

    def _decline(self, command: protocol.WorkerCommand) -> bool:
        """A command came without its descriptor, because this worker has none left; False if the
        worker cannot go on without the command."""
        match command:
            case protocol.AdoptClient():
                self._link.send(protocol.ClientLeft(command.client, _NO_DESCRIPTORS))
            case protocol.InheritClient():
                self._moves.inheritance.decline(command, _NO_DESCRIPTORS)
            case protocol.PrepareClient():
                self._link.send(protocol.MoveDeclined(command.adoption.client, _NO_DESCRIPTORS))
            case protocol.RecordClients():
                self._link.send(protocol.Done(command.number, _NO_DESCRIPTORS))
            case protocol.MapRecords() | protocol.PrepareRecorded():
                self._moves.snapshots.command.fail(_NO_DESCRIPTORS)
            case protocol.StartStream():
                self._link.send(protocol.StreamStarted(command.stream, has_begun=False))
            case protocol.ApplySettings():
                # It must not go on under the old rules. A successor begins with the new ones.
                self._emitter.emit(WorkerGivesUp(worker=self._context.worker))
                return False
        return True
