"""What a worker sends of what it does: streams to watchers, and samples of traffic to the front."""

from functools import partial

from sbus.broker.events.stream_writer import StartTask, StreamWriter
from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.monitor import KeySelection, MessageMonitor, MessageStream
from sbus.broker.worker.sessions import Sessions
from sbus.protocol.events import StreamMissed


class WorkerStreams:
    """Of one worker. `start_task` runs a task until it ends."""

    def __init__(
        self,
        context: WorkerContext,
        sessions: Sessions,
        monitor: MessageMonitor,
        start_task: StartTask,
    ) -> None:
        self._context = context
        self._emitter = context.emitter
        self._sessions = sessions
        self._monitor = monitor
        self._start_task = start_task

    def start_stream(self, command: protocol.StartStream, fd: int) -> None:
        """Write a stream to `fd`, which belongs to this worker from now on."""
        if command.kind == "events":
            self._emitter.open_stream(command.stream, fd, self._start_task)
            self._start_task(partial(self._context.client_events.report_drops, self._sessions))
        else:
            on_gone = partial(self.stop_stream, command.stream)
            writer = StreamWriter(fd, self._start_task, on_gone, self._on_missing)
            selection = KeySelection(command.patterns, self._context.dialect)
            stream = MessageStream(writer, selection, payload=command.payload)
            self._monitor.add_stream(command.stream, stream)
        self._context.link.send(protocol.StreamStarted(command.stream))

    def stop_stream(self, number: int) -> None:
        self._emitter.close_stream(number)
        self._monitor.remove_stream(number)

    def _on_missing(self) -> None:
        self._emitter.emit(StreamMissed(worker=self._context.worker))

    def start_sampling(self) -> None:
        """Count which clients exchange how many messages."""
        self._monitor.start_sampling()

    def stop_sampling(self) -> None:
        """Report what was counted."""
        self._context.link.send(self._monitor.stop_sampling(self._sessions))
