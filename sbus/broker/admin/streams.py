"""Those who watch the bus: the front's part of the streams of messages and events.

A watcher is a connection to the admin socket that asked for a stream. It is handed to every worker,
and each writes to it what it has to tell; the front writes its own events and relays nothing. So
nobody ever waits for a watcher, and the front learns only when one has gone.

A worker that takes the place of a dead one is told of all streams before it gets a client.

    a connection is kept here until every worker that was handed it has said that it has it

This module does not know what a stream holds, nor who may watch.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from sbus.broker.admin.handlers import AdminFault
from sbus.broker.events.emitter import EventEmitter, EventStream
from sbus.broker.events.stream_writer import StreamWriter
from sbus.broker.ipc.worker_protocol import StartStream, StopStream, StreamStarted, WorkerCommand
from sbus.errors import ClientFault
from sbus.limits import Limits
from sbus.protocol import admin
from sbus.protocol.admin_results import MonitorResult
from sbus.protocol.keys import Dialect, check_pattern
from sbus.protocol.text import from_text
from sbus.unix.closing import is_hung_up

ANSWER_SECONDS_MAX = 2.0
"""For which the beginning of a stream waits for the workers."""
_BUFFER_BYTES = 4 * 1024 * 1024
"""SO_SNDBUF asked for on a watcher's connection: all that a watcher may be behind. The kernel cuts
it to its own limit (net.core.wmem_max)."""


class _Stream:
    def __init__(self, command: StartStream, sock: socket.socket) -> None:
        self.command = command
        self.sock = sock
        self.unanswered: set[int] = set()
        self.unable: set[int] = set()
        """Workers that have no descriptor left for it."""
        self.ended = False
        self.changed = trio.Event()


class StreamRegistry:
    """All watchers of one bus. `workers` gives the numbers of the workers that can be told
    something now, `tell` tells one, and borrows the descriptor until the worker has answered."""

    def __init__(
        self,
        limits: Limits,
        dialect: Dialect,
        events: EventEmitter,
        workers: Callable[[], list[int]],
        tell: Callable[[int, WorkerCommand, int | None], None],
    ) -> None:
        self.limits = limits
        self._dialect = dialect
        self._events = events
        self._workers = workers
        self._tell = tell
        self._watches: dict[int, _Stream] = {}
        self._begun = 0

    def run(self, nursery: trio.Nursery) -> None:
        """Leave tasks in `nursery` from now on."""
        self._nursery = nursery

    async def begin(
        self, request: admin.Monitor | admin.Events, sock: socket.socket
    ) -> MonitorResult:
        """Begin a stream on a connection, of which a copy is kept until the other end closes it.

        The caller closes its own, and must not shut it down. Raises AdminFault.
        """
        patterns = self._check(request)
        self._begun += 1
        if isinstance(request, admin.Monitor):
            command = StartStream(self._begun, "messages", patterns, request.payload)
        else:
            command = StartStream(self._begun, "events")
        copy, own = _copies(sock)
        watch = self._watches[command.stream] = _Stream(command, copy)
        if command.kind == "events":
            self._begin_own(watch, own)
        else:
            own.close()
        for worker in self._workers():
            self._hand_over(watch, worker)
        self._nursery.start_soon(self._wait_for_end, watch)
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            while watch.unanswered:
                await watch.changed.wait()
        return MonitorResult(sorted(watch.unanswered | watch.unable), time.monotonic_ns())

    def _check(self, request: admin.Monitor | admin.Events) -> list[bytes]:
        """The patterns of a request that can be granted. Raises AdminFault."""
        if len(self._watches) >= self.limits.watchers_max:
            raise AdminFault(
                "failed",
                f"{len(self._watches)} watch already, as many as may (watchers_max)",
            )
        patterns = []
        for text in request.patterns if isinstance(request, admin.Monitor) else ():
            try:
                pattern = from_text(text)
                check_pattern(pattern, self._dialect, self.limits)
            except (ValueError, ClientFault) as error:
                raise AdminFault("bad-request", f"pattern {text[:64]!r}: {error}") from error
            patterns.append(pattern)
        return patterns

    # -- what the front tells ------------------------------------------------------------------
    def introduce(self, worker: int) -> None:
        """A new worker can be told something, and has no clients yet."""
        for watch in self._watches.values():
            if not watch.ended:
                self._hand_over(watch, worker)

    def on_answer(self, worker: int, answer: StreamStarted) -> None:
        """A worker has a stream's connection, or cannot have it."""
        watch = self._watches.get(answer.stream)
        if watch is not None:
            if not answer.has_begun:
                watch.unable.add(worker)
            self._note_answer(watch, worker)

    def on_worker_death(self, worker: int) -> None:
        """This worker answers nothing any more."""
        for watch in list(self._watches.values()):
            self._note_answer(watch, worker)

    # -- pieces --------------------------------------------------------------------------------
    def _begin_own(self, watch: _Stream, own: socket.socket) -> None:
        """Write the front's own events, too; `own` is taken."""
        number, start_task = watch.command.stream, self._nursery.start_soon
        writer = StreamWriter(own.detach(), start_task, partial(self._events.remove_stream, number))
        self._events.add_stream(number, EventStream(writer, start_task))

    def _hand_over(self, watch: _Stream, worker: int) -> None:
        watch.unanswered.add(worker)
        self._tell(worker, watch.command, watch.sock.fileno())

    def _note_answer(self, watch: _Stream, worker: int) -> None:
        watch.unanswered.discard(worker)
        changed, watch.changed = watch.changed, trio.Event()
        changed.set()
        if watch.ended and not watch.unanswered:
            self._forget(watch)

    async def _wait_for_end(self, watch: _Stream) -> None:
        """Wait until the watcher has gone; what it sends meanwhile means nothing."""
        while not is_hung_up(watch.sock):
            await trio.lowlevel.wait_readable(watch.sock)
            with suppress(BlockingIOError, ConnectionResetError):
                watch.sock.recv(1)
        watch.ended = True
        self._events.remove_stream(watch.command.stream)
        for worker in self._workers():
            self._tell(worker, StopStream(watch.command.stream), None)
        if not watch.unanswered:
            self._forget(watch)

    def _forget(self, watch: _Stream) -> None:
        del self._watches[watch.command.stream]
        watch.sock.close()


def _copies(sock: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Two copies of a connection, with room for all that a watcher may be behind.

    Raises AdminFault when there are no descriptors left.
    """
    try:
        one = sock.dup()
        try:
            other = sock.dup()
        except OSError:
            one.close()
            raise
    except OSError as error:
        raise AdminFault("failed", f"the bus has no room for it: {error.strerror}") from error
    for copy in (one, other):
        copy.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return one, other
