"""What one worker does for those who watch: beginning and ending the streams that it writes.

Which stream a connection gets is the front's to say. This module does not know what messages and
events are, nor who may watch.
"""

from functools import partial

import trio

from sbus.broker.worker.client_events import LOOK_SECONDS, PIECE_SECONDS
from sbus.broker.worker.clients import Clients
from sbus.broker.events.emitter import Events, EventWatch
from sbus.broker.ipc.messages import Watch
from sbus.broker.worker.monitor import MessageWatch, Monitor, Selection
from sbus.broker.events.stream_writer import StartTask, Watcher
from sbus.protocol.events import StreamMissed
from sbus.protocol.keys import Dialect


class WorkerWatches:
    """Of worker `number`. `start_task` runs a task until it ends."""

    def __init__(
        self,
        number: int,
        clients: Clients,
        events: Events,
        dialect: Dialect,
        start_task: StartTask,
    ) -> None:
        self._number = number
        self._clients = clients
        self._events = events
        self._dialect = dialect
        self._start_task = start_task
        self._monitor = Monitor(number)
        self._looking = False

    def begin(self, order: Watch, fd: int) -> None:
        """Write this stream to `fd`, which is this worker's from now on."""
        on_gone = partial(self.end, order.watch)
        if order.stream == "events":
            watcher = Watcher(fd, self._start_task, on_gone)
            self._events.add_watch(order.watch, EventWatch(watcher, self._start_task))
            if not self._looking:
                self._looking = True
                self._start_task(self._look_for_discards)
            return
        watcher = Watcher(fd, self._start_task, on_gone, self._on_missing)
        selection = Selection(order.patterns, self._dialect)
        watch = MessageWatch(watcher, selection, payload=order.payload)
        self._monitor.add_watch(order.watch, watch)
        self._clients.exchange.monitor = self._monitor

    def end(self, number: int) -> None:
        """Write a stream no more, if there is such a one."""
        self._events.remove_watch(number)
        self._monitor.remove_watch(number)
        if not self._monitor:
            self._clients.exchange.monitor = None

    def _on_missing(self) -> None:
        self._events.emit(StreamMissed(worker=self._number))

    async def _look_for_discards(self) -> None:
        """Tell what is discarded while somebody watches."""
        events = self._clients.events
        events.begin_looking()
        while self._events.watched:
            await trio.sleep(LOOK_SECONDS)
            for _ in events.look():
                await trio.sleep(PIECE_SECONDS)
        self._looking = False
