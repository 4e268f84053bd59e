"""The streams of messages and events that one worker writes to watchers."""

from functools import partial

from sbus.broker.events.emitter import EventStream
from sbus.broker.events.stream_writer import StartTask, StreamWriter
from sbus.broker.ipc.worker_protocol import StartStream
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.monitor import KeySelection, MessageMonitor, MessageStream
from sbus.broker.worker.sessions import Sessions
from sbus.protocol.events import StreamMissed


class WorkerStreams:
    """`start_task` runs a task until it ends."""

    def __init__(
        self,
        context: WorkerContext,
        sessions: Sessions,
        monitor: MessageMonitor,
        start_task: StartTask,
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._monitor = monitor
        self._emitter = context.emitter
        self._start_task = start_task

    def begin(self, command: StartStream, fd: int) -> None:
        """Write this stream to `fd`, which belongs to this worker from now on."""
        on_gone = partial(self.end, command.stream)
        if command.kind == "events":
            writer = StreamWriter(fd, self._start_task, on_gone)
            self._emitter.add_stream(command.stream, EventStream(writer, self._start_task))
            client_events = self._context.client_events
            self._start_task(partial(client_events.report_discards, self._sessions))
        else:
            writer = StreamWriter(fd, self._start_task, on_gone, self._on_missing)
            selection = KeySelection(command.patterns, self._context.dialect)
            stream = MessageStream(writer, selection, payload=command.payload)
            self._monitor.add_stream(command.stream, stream)

    def end(self, number: int) -> None:
        """Stop writing a stream, if it exists."""
        self._emitter.remove_stream(number)
        self._monitor.remove_stream(number)

    def _on_missing(self) -> None:
        self._emitter.emit(StreamMissed(worker=self._context.number))
