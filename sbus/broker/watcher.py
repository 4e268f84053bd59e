"""A connection that this process writes a stream to, and never waits for.

Several processes write to the same connection, each by a descriptor of its own. What it has no room
for is counted as missed; as soon as there is room again that is told, in whatever goes there next
or, if nothing does, by itself.

    given to `send`  =  sent + missed

This module does not know what a stream holds.
"""

import errno
import os
import socket
from collections.abc import Awaitable, Callable

import msgspec
import trio

from sbus.protocol.admin_streams import Missed

_FULL = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EMSGSIZE})
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN})
_MEMORY_RETRY_SECONDS = 0.01

StartTask = Callable[[Callable[[], Awaitable[None]]], None]

_encoder = msgspec.json.Encoder()


class Watcher:
    """Takes `fd`. `start_task` runs a task until it ends; `on_missing` is called when something is
    missed for the first time since all was told, `on_gone` when nobody is at the other end."""

    __slots__ = ("_on_gone", "_on_missing", "_sock", "_start_task", "_telling", "missed", "source")

    def __init__(
        self,
        fd: int,
        start_task: StartTask,
        on_missing: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
        self._sock.setblocking(False)
        self._start_task = start_task
        self._on_missing = on_missing
        self._on_gone = on_gone
        self._telling = False
        self.missed = 0
        """How much of the stream this process could not send."""
        self.source = os.getpid()

    def send(self, packet: msgspec.Struct, count: int) -> bool:
        """Send a packet, or count what it tells as missed; returns whether it was sent."""
        if self._sock.fileno() < 0:
            return False
        try:
            self._sock.send(_encoder.encode(packet))
        except OSError as error:
            if error.errno in _GONE:
                self._on_gone()
            elif error.errno in _FULL:
                self.miss(count)
            else:
                raise
            return False
        return True

    def miss(self, count: int) -> None:
        """Count something as missed that there was no room for."""
        self.missed += count
        if count and not self._telling:
            self._telling = True
            self._start_task(self._tell_missed)
            self._on_missing()

    async def _tell_missed(self) -> None:
        """Wait for room, and tell how much was missed."""
        while self._sock.fileno() >= 0:
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                return
            if self.send(Missed(source=self.source, missed=self.missed), 0):
                self._telling = False
                return
            await trio.sleep(_MEMORY_RETRY_SECONDS)

    def close(self) -> None:
        """Write no more."""
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
