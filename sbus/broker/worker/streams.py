"""What one worker does for those who watch: beginning and ending the streams that it writes.

Which stream a connection gets is the front's to say. This module does not know what messages and
events are, nor who may watch.
"""

from functools import partial

import trio

from sbus.broker.events.emitter import EventEmitter, EventStream
from sbus.broker.events.stream_writer import StartTask, StreamWriter
from sbus.broker.ipc.worker_protocol import StartStream
from sbus.broker.worker.client_events import LOOK_SECONDS, PIECE_SECONDS
from sbus.broker.worker.clients import Clients
from sbus.broker.worker.monitor import KeySelection, MessageMonitor, MessageStream
from sbus.protocol.events import StreamMissed
from sbus.protocol.keys import Dialect


class WorkerStreams:
    """Of worker `number`. `start_task` runs a task until it ends."""

    def __init__(
        self,
        number: int,
        clients: Clients,
        events: EventEmitter,
        dialect: Dialect,
        start_task: StartTask,
    ) -> None:
        self._number = number
        self._clients = clients
        self._events = events
        self._dialect = dialect
        self._start_task = start_task
        self._monitor = MessageMonitor(number)
        self._looking = False

    def begin(self, command: StartStream, fd: int) -> None:
        """Write this stream to `fd`, which is this worker's from now on."""
        on_gone = partial(self.end, command.stream)
        if command.kind == "events":
            watcher = StreamWriter(fd, self._start_task, on_gone)
            self._events.add_stream(command.stream, EventStream(watcher, self._start_task))
            if not self._looking:
                self._looking = True
                self._start_task(self._look_for_discards)
            return
        watcher = StreamWriter(fd, self._start_task, on_gone, self._on_missing)
        selection = KeySelection(command.patterns, self._dialect)
        watch = MessageStream(watcher, selection, payload=command.payload)
        self._monitor.add_watch(command.stream, watch)
        self._clients.sequencer.monitor = self._monitor

    def end(self, number: int) -> None:
        """Write a stream no more, if there is such a one."""
        self._events.remove_stream(number)
        self._monitor.remove_watch(number)
        if not self._monitor:
            self._clients.sequencer.monitor = None

    def _on_missing(self) -> None:
        self._events.emit(StreamMissed(worker=self._number))

    async def _look_for_discards(self) -> None:
        """Tell what is discarded while somebody watches."""
        events = self._clients.events
        events.begin_looking()
        while self._events.is_watched:
            await trio.sleep(LOOK_SECONDS)
            for _ in events.look():
                await trio.sleep(PIECE_SECONDS)
        self._looking = False
