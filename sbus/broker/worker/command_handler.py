"""A worker carries out the commands of the front."""

import os

from sbus.broker.config.settings import read_memfd
from sbus.broker.ipc.link import lost_command
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ApplySettings,
    ClientLeft,
    DisconnectClient,
    QueryReply,
    Quiesce,
    RunQuery,
    SelfServiceReply,
    StartStream,
    Stop,
    StopStream,
    StreamStarted,
    WorkerCommand,
)
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.loop import WorkerLoop
from sbus.broker.worker.query_handler import QueryHandler
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.worker_streams import WorkerStreams
from sbus.protocol.events import WorkerGivesUp
from sbus.unix.fd_passing import DescriptorsLost


class CommandHandler:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        sessions: Sessions,
        streams: WorkerStreams,
        query_handler: QueryHandler,
        loop: WorkerLoop,
    ) -> None:
        self._context = context
        self._link = context.link
        self._sessions = sessions
        self._streams = streams
        self._query_handler = query_handler
        self._loop = loop

    async def run(self) -> None:
        """Carry out commands until the front has ended, or the worker has to give up."""
        while True:
            try:
                command, fds = self._link.receive_command()
            except BlockingIOError:
                await self._link.wait()
                continue
            except DescriptorsLost as lost:
                if not self._decline(lost_command(lost)):
                    return
                continue
            if command is None:
                return
            self._carry_out(command, fds)
            self._context.wake()

    def _carry_out(self, command: WorkerCommand, fds: list[int]) -> None:
        match command:
            case AdoptClient():
                self._sessions.adopt(command, fds[0])
            case DisconnectClient():
                self._sessions.disconnect(command.client, command.text)
            case SelfServiceReply():
                self._sessions.reply_to_self_service(command.client, command.packet)
            case ApplySettings():
                self._sessions.apply_settings(command.number, read_memfd(fds[0]))
                os.close(fds[0])
            case RunQuery():
                reply = self._query_handler.answer(command.query)
                self._link.send(QueryReply(command.number, reply))
            case StartStream():
                self._streams.begin(command, fds[0])
                self._link.send(StreamStarted(command.stream))
            case StopStream():
                self._streams.end(command.stream)
            case Quiesce():
                self._loop.quiesce()
            case Stop():
                self._loop.stop()

    def _decline(self, command: WorkerCommand) -> bool:
        """A command came without its descriptor, because this worker has none left; False when the
        worker cannot go on without it."""
        match command:
            case AdoptClient():
                self._link.send(ClientLeft(command.client, "the worker has no descriptors left"))
            case StartStream():
                self._link.send(StreamStarted(command.stream, has_begun=False))
            case ApplySettings():
                # It must not go on under the old rules. A successor begins with the new ones.
                self._context.emitter.emit(WorkerGivesUp(worker=self._context.number))
                return False
        return True
