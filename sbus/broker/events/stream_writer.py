"""A connection that this process writes a stream to, and never waits for.

Several processes write to the same connection, each by a descriptor of its own. What it has no room
for is counted as missed; as soon as there is room again that is told, in whatever goes there next
or, if nothing does, by itself.

    what was given to `send`  =  sent + missed,  but for a rest, which is sent in any case

This module does not know what a stream holds.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import trio

from sbus.protocol.admin_streams import Missed
from sbus.unix.errno_sets import PEER_GONE, SOCKET_FULL

_NO_ROOM = SOCKET_FULL | {errno.EMSGSIZE}
_RETRY_SECONDS = 0.001
"""The kernel may have no memory for a packet though it calls a socket writable."""

StartTask = Callable[[Callable[[], Awaitable[None]]], None]

_encoder = msgspec.json.Encoder()


class StreamWriter:
    """Takes `fd`. `start_task` runs a task until it ends; `on_gone` is called when nobody is at the
    other end, `on_missing` when something is missed for the first time since all was told."""

    __slots__ = (
        *("_catching_up", "_on_gone", "_on_missing", "_rest", "_sock", "_start_task", "_told"),
        *("missed", "source"),
    )

    def __init__(
        self,
        fd: int,
        start_task: StartTask,
        on_gone: Callable[[], None],
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
        self._sock.setblocking(False)
        self._start_task = start_task
        self._on_missing = on_missing
        self._on_gone = on_gone
        self._rest: deque[msgspec.Struct] = deque()
        self._catching_up = False
        self.missed = 0
        """How much of the stream this process could not send."""
        self._told = 0
        self.source = os.getpid()

    def send(self, packet: msgspec.Struct, count: int, rest: Iterable[msgspec.Struct] = ()) -> None:
        """Send a packet, or count what it tells as missed. What belongs to it follows, the `rest`,
        if need be later, and nothing in between."""
        if self._rest or not self._try_to_send(packet):
            self.miss(count)
            return
        self._rest.extend(rest)
        if not self._send_rest():
            self._catch_up_later()

    def miss(self, count: int) -> None:
        """Count something as missed that there is no room for."""
        if count and self._sock.fileno() >= 0:
            all_told = self.missed == self._told
            self.missed += count
            self._catch_up_later()
            if all_told:
                self._on_missing()

    def close(self) -> None:
        """Write no more."""
        self._rest.clear()
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    # -- pieces --------------------------------------------------------------------------------
    def _try_to_send(self, packet: msgspec.Struct) -> bool:
        if self._sock.fileno() < 0:
            return False
        try:
            self._sock.send(_encoder.encode(packet))
        except OSError as error:
            if error.errno in PEER_GONE:
                self._on_gone()
            elif error.errno not in _NO_ROOM:
                raise
            return False
        return True

    def _send_rest(self) -> bool:
        while self._rest and self._try_to_send(self._rest[0]):
            self._rest.popleft()
        return not self._rest

    def _catch_up_later(self) -> None:
        if not self._catching_up:
            self._catching_up = True
            self._start_task(self._catch_up)

    async def _catch_up(self) -> None:
        """Wait for room, send what belongs to something that was sent, and tell what was missed."""
        while self._sock.fileno() >= 0:
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                return
            missed = self.missed
            if self._send_rest() and (
                missed == self._told or self._try_to_send(Missed(source=self.source, missed=missed))
            ):
                self._told = missed
                self._catching_up = False
                return
            await trio.sleep(_RETRY_SECONDS)
