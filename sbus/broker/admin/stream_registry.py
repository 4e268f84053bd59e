"""Streams of messages and events: the front's part.

A watcher is a connection of the admin socket that asked for a stream. It is handed to every worker,
and each writes to it what happens there; the front writes its own events and relays nothing. So
nobody ever waits for a watcher, and the front notices only when one has gone.

A worker that takes the place of a dead one is handed all streams before it gets a client.
"""

import os
import socket
import time
from contextlib import suppress
from typing import Any

import msgspec
import trio

from sbus.broker.admin.actions import describe_request
from sbus.broker.admin.request_codec import AdminFault, Reply, Takers
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import StartStream, StopStream, StreamStarted
from sbus.errors import ClientFault
from sbus.protocol import admin
from sbus.protocol.admin_events import MonitorBegan, MonitorEnded
from sbus.protocol.admin_results import MonitorResult
from sbus.protocol.admin_streams import Ended
from sbus.protocol.keys import DIALECTS, check_pattern
from sbus.protocol.text import from_text
from sbus.unix.closing import end_connection, is_hung_up
from sbus.unix.fd_passing import dup_socket

START_SECONDS_MAX = 2.0
"""How long the start of a stream waits for the workers."""
_BUFFER_BYTES = 4 * 1024 * 1024
"""SO_SNDBUF asked for on a watcher's connection: all that a watcher may be behind. The kernel cuts
it to its own limit (net.core.wmem_max), and doubles it."""
_REASON_BYTES = 32 * 1024
"""Of these, for the reason why a stream ends. A larger packet before it may take them."""


class _Stream:
    def __init__(
        self, command: StartStream, sock: socket.socket, description: dict[str, Any]
    ) -> None:
        self.command = command
        self.description = description
        """Of the request, for the event of its end."""
        self.number = command.stream
        self.sock = sock
        self.unanswered: set[int] = set()
        self.unable: set[int] = set()
        """Workers that have no descriptor left for it."""
        self.settled = trio.lowlevel.ParkingLot()


class StreamRegistry:
    """Keeps the streams of one bus. Runs tasks in `nursery`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        supervisor: Supervisor,
        settings: BusSettings,
        events: EventEmitter,
    ) -> None:
        self._nursery = nursery
        self._supervisor = supervisor
        self._dialect = DIALECTS[settings.dialect]
        self._events = events
        self._streams: dict[int, _Stream] = {}
        self._last_number = 0
        self.takers: Takers = {admin.Monitor: self._take, admin.Events: self._take}
        self.apply_settings(settings)

    def apply_settings(self, settings: BusSettings) -> None:
        self._limits = settings.limits

    async def _take(
        self, request: admin.Monitor | admin.Events, sock: socket.socket, reply: Reply
    ) -> None:
        await reply(await self.begin(request, sock))

    async def begin(
        self, request: admin.Monitor | admin.Events, sock: socket.socket
    ) -> MonitorResult:
        """Begin a stream on a connection, of which a copy is kept until the other end closes it.

        The caller closes its own, and must not shut it down. Raises AdminFault.
        """
        patterns = self._check(request)
        self._last_number += 1
        if isinstance(request, admin.Monitor):
            command = StartStream(self._last_number, "messages", patterns, request.payload)
        else:
            command = StartStream(self._last_number, "events")
        copy, own = _copies(sock)
        stream = _Stream(command, copy, describe_request(request, sock))
        self._streams[command.stream] = stream
        if command.kind == "messages":
            self._events.emit(MonitorBegan(**stream.description))
        if command.kind == "events":
            self._events.open_stream(stream.number, own.detach(), self._nursery.start_soon)
        else:
            own.close()
        for worker in self._supervisor.running_workers():
            self._hand_over(stream, worker)
        self._nursery.start_soon(self._wait_for_end, stream)
        with trio.move_on_after(START_SECONDS_MAX):
            while stream.unanswered:
                await stream.settled.park()
        return MonitorResult(sorted(stream.unanswered | stream.unable), time.monotonic_ns())

    def _check(self, request: admin.Monitor | admin.Events) -> list[bytes]:
        """The patterns of a request that can be granted. Raises AdminFault."""
        if len(self._streams) >= self._limits.watchers_max:
            raise AdminFault(
                "failed",
                f"{len(self._streams)} watch already, as many as may (watchers_max)",
            )
        patterns = []
        for text in request.patterns if isinstance(request, admin.Monitor) else ():
            try:
                pattern = from_text(text)
                check_pattern(pattern, self._dialect, self._limits)
            except (ValueError, ClientFault) as error:
                raise AdminFault("bad-request", f"pattern {text[:64]!r}: {error}") from error
            patterns.append(pattern)
        return patterns

    def end_all(self, why: str) -> None:
        """End all streams, and tell the watchers why, as far as there is room."""
        self._events.close()
        packet = msgspec.json.encode(Ended(source=os.getpid(), why=why))
        for stream in self._streams.values():
            stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            with suppress(OSError):
                stream.sock.send(packet, socket.MSG_DONTWAIT)
            end_connection(stream.sock)

    # -- what workers do -----------------------------------------------------------------------
    def on_worker_forked(self, worker: int) -> None:
        """Hand all streams to a worker that has no clients yet."""
        for stream in self._streams.values():
            self._hand_over(stream, worker)

    def on_started(self, worker: int, event: StreamStarted) -> None:
        """A worker has a stream's connection, or cannot have it."""
        stream = self._streams.get(event.stream)
        if stream is not None:
            if not event.has_begun:
                stream.unable.add(worker)
            self._settle(stream, worker)

    def on_worker_death(self, worker: int) -> None:
        for stream in self._streams.values():
            self._settle(stream, worker)

    # -- pieces --------------------------------------------------------------------------------
    def _hand_over(self, stream: _Stream, worker: int) -> None:
        stream.unanswered.add(worker)
        self._supervisor.send(worker, stream.command, stream.sock.fileno())

    def _settle(self, stream: _Stream, worker: int) -> None:
        """Wait for this worker's answer no more."""
        stream.unanswered.discard(worker)
        stream.settled.unpark_all()

    async def _wait_for_end(self, stream: _Stream) -> None:
        """Wait until the watcher has gone; what it sends meanwhile has no meaning."""
        while not is_hung_up(stream.sock):
            await trio.lowlevel.wait_readable(stream.sock)
            with suppress(BlockingIOError, ConnectionResetError):
                stream.sock.recv(1, socket.MSG_DONTWAIT)
        self._events.close_stream(stream.number)
        if stream.command.kind == "messages":
            self._events.emit(MonitorEnded(**stream.description))
        for worker in self._supervisor.running_workers():
            self._supervisor.send(worker, StopStream(stream.number))
        stream.unanswered.clear()
        stream.settled.unpark_all()
        del self._streams[stream.number]
        stream.sock.close()


def _copies(sock: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Two copies of a connection, with room for all that a watcher may be behind.

    Raises AdminFault when there are no descriptors left.
    """
    try:
        one = dup_socket(sock)
        try:
            other = dup_socket(sock)
        except OSError:
            one.close()
            raise
    except OSError as error:
        raise AdminFault("failed", f"the bus has no room for it: {error.strerror}") from error
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    doubled = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, doubled // 2 - _REASON_BYTES)
    return one, other
