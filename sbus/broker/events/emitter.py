"""The event emitter: sends the events of one process to the log and to streams of events.

A kind of event that is not logged goes to streams alone. A stream collects events for a moment and
sends them in one packet, which keeps many events cheap. A client that provokes floods of events
makes a watcher miss some, which are counted, and does no other harm.
"""

import os
import socket
import time
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from sbus.broker.events.sinks import WriteEvent
from sbus.broker.events.stream_writer import StartTask, StreamWriter
from sbus.protocol import admin_streams
from sbus.protocol.event import NO_NAMES, Client, Event, Process
from sbus.protocol.text import to_text
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import peer_program

COLLECTING_SECONDS = 0.02
EVENTS_PER_PACKET_MAX = 100
"""So many in one `COLLECTING_SECONDS`, at hardly more than 1 KiB each; more are missed."""


class _Stream:
    """A stream of events, as this process writes it. Owns `writer`."""

    def __init__(self, writer: StreamWriter, start_task: StartTask) -> None:
        self._writer = writer
        self._start_task = start_task
        self._collected: list[dict[str, Any]] = []

    def add(self, event: dict[str, Any]) -> None:
        """Send an event soon."""
        if len(self._collected) >= EVENTS_PER_PACKET_MAX:
            self._writer.count_missed(1)
            return
        self._collected.append(event)
        if len(self._collected) == 1:
            self._start_task(self._flush_later)

    async def _flush_later(self) -> None:
        await trio.sleep(COLLECTING_SECONDS)
        self.flush()

    def flush(self) -> None:
        events, self._collected = self._collected, []
        if events:
            writer = self._writer
            packet = admin_streams.Events(source=writer.source, missed=writer.missed, events=events)
            writer.send(packet, len(events))

    def close(self) -> None:
        self._collected.clear()
        self._writer.close()


class EventEmitter:
    """Emits the events of one process. `write` writes to the log; `user_names` are for texts."""

    def __init__(self, write: WriteEvent, user_names: Mapping[int, str] = NO_NAMES) -> None:
        self._write = write
        self._user_names = user_names
        self._streams: dict[int, _Stream] = {}

    @property
    def is_watched(self) -> bool:
        """Whether there is a stream. If not, an event that is not logged need not be made."""
        return bool(self._streams)

    def emit(self, event: Event) -> None:
        """Send an event to all streams, and to the log if its kind is logged."""
        self.show(event)
        if event.logged:
            self.log(event)

    def log(self, event: Event, *, left_out: int = 0) -> None:
        """Log an event, and how many like it were not."""
        more = f" (and {left_out} more like it)" if left_out else ""
        self._write(event, f"{event.text(self._user_names)}{more}")

    def show(self, event: Event) -> None:
        """Send an event to all streams."""
        if not self._streams:
            return
        shown = {
            "time": time.time(),
            "event": event.id(),
            "priority": event.priority,
            "text": event.text(self._user_names),
            **event.fields(),
        }
        for name, value in shown.items():
            if isinstance(value, str) and not value.isascii():
                # For example a path that is not UTF-8.
                shown[name] = value.encode(errors="backslashreplace").decode()
        for stream in tuple(self._streams.values()):
            stream.add(shown)

    def open_stream(self, number: int, fd: int, start_task: StartTask) -> None:
        """Write a stream to `fd`, which is taken, until the watcher has gone."""
        writer = StreamWriter(fd, start_task, partial(self.close_stream, number))
        self._streams[number] = _Stream(writer, start_task)

    def close_stream(self, number: int) -> None:
        """Write this stream no more, if it is one of events."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Send at once what was collected, and close all streams."""
        for number, stream in tuple(self._streams.items()):
            stream.flush()
            self.close_stream(number)


def describe_process(own: Credentials, program: bytes) -> Process:
    """What events say of a process that connected, or wanted to."""
    return Process(uid=own.uid, gid=own.gid, pid=own.pid, program=to_text(program))


def describe_client(number: int, own: Credentials, sock: socket.socket) -> Client:
    """What events say of a client; `sock` is the bus's end of its connection."""
    program = to_text(peer_program(sock, own.pid))
    return Client(client=number, uid=own.uid, gid=own.gid, pid=own.pid, program=program)


def describe_bug(error: Exception) -> tuple[str, str]:
    """An error that is a bug, in one line, and the place in the code that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return ascii(error)[:200], f"{os.path.basename(frame.filename)}:{frame.lineno}"
