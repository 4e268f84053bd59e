"""Where events of one process go: to the log, if their kind is logged, and to those who watch.

What is shown is collected for a moment and sent in one packet, so that many events cost little and
somebody who provokes them in masses makes others miss some, counted, and nothing worse. While
nobody watches an event that is not logged costs one look: `watched`.

This module does not know when something happens, nor how often it may be logged.
"""

import socket
import time
from collections.abc import Callable
from typing import Any

import trio

from sbus.broker.events.sinks import WriteEvent
from sbus.broker.events.stream_writer import StreamWriter
from sbus.protocol import admin_streams
from sbus.protocol.events import Client, Event, Process
from sbus.protocol.text import to_text
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import peer_program

COLLECTING_SECONDS = 0.02
EVENTS_PER_PACKET_MAX = 100
"""So many in one `COLLECTING_SECONDS`, at hardly more than 1 KiB each; more are missed."""


class EventStream:
    """One stream of events, as this process writes it. Owns `watcher`."""

    def __init__(
        self, writer: StreamWriter, start_task: Callable[[Callable[[], Any]], None]
    ) -> None:
        self._writer = writer
        self._start_task = start_task
        self._collected: list[dict[str, Any]] = []

    def show(self, shown: dict[str, Any]) -> None:
        """Send this soon."""
        if len(self._collected) >= EVENTS_PER_PACKET_MAX:
            self._writer.miss(1)
            return
        self._collected.append(shown)
        if len(self._collected) == 1:
            self._start_task(self._send_soon)

    async def _send_soon(self) -> None:
        await trio.sleep(COLLECTING_SECONDS)
        self.flush()

    def flush(self) -> None:
        """Send what was collected."""
        events, self._collected = self._collected, []
        if events:
            writer = self._writer
            packet = admin_streams.Events(source=writer.source, missed=writer.missed, events=events)
            writer.send(packet, len(events))

    def close(self) -> None:
        self._collected.clear()
        self._writer.close()


class EventEmitter:
    """One process's. `write` writes to the log."""

    def __init__(self, write: WriteEvent) -> None:
        self._write = write
        self._streams: dict[int, EventStream] = {}

    @property
    def is_watched(self) -> bool:
        """Whether anybody is shown events."""
        return bool(self._streams)

    def emit(self, event: Event) -> None:
        """Something happened."""
        self.show(event)
        if event.logged:
            self.log(event)

    def log(self, event: Event, *, left_out: int = 0) -> None:
        """Log an event, and how many like it were not."""
        more = f" (and {left_out} more like it)" if left_out else ""
        self._write(event, f"{event.text()}{more}")

    def show(self, event: Event) -> None:
        """Show an event to whoever watches."""
        if not self._streams:
            return
        shown = {
            "time": time.time(),
            "event": event.id(),
            "priority": event.priority,
            "text": event.text(),
            **event.fields(),
        }
        for name, value in shown.items():
            if isinstance(value, str) and not value.isascii():
                # A path, say, that is no UTF-8.
                shown[name] = value.encode(errors="backslashreplace").decode()
        for stream in tuple(self._streams.values()):
            stream.show(shown)

    def add_stream(self, number: int, stream: EventStream) -> None:
        self._streams[number] = stream

    def remove_stream(self, number: int) -> None:
        """Forget a watch, if there is such a one."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Send at once what was collected, and show nothing more."""
        for number, stream in tuple(self._streams.items()):
            stream.flush()
            self.remove_stream(number)


def describe_process(own: Credentials, program: bytes) -> Process:
    """What events say of a process that connected, or wanted to."""
    return Process(uid=own.uid, gid=own.gid, pid=own.pid, program=to_text(program))


def describe_client(number: int, own: Credentials, sock: socket.socket) -> Client:
    """What events say of a client; `sock` is the bus's end of its connection."""
    program = to_text(peer_program(sock, own.pid))
    return Client(client=number, uid=own.uid, gid=own.gid, pid=own.pid, program=program)
