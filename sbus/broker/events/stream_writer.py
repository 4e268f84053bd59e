"""The stream writer: writes a stream to a watcher's connection, and never waits for it.

Several processes write to the same connection, each by a descriptor of its own. What it has no room
for is counted as missed, and so is all that follows until the socket is writable again. Then the
count is sent, before any other packet. So a watcher that does not read costs no encoding.

    items given to `send` and `miss`  =  items sent + missed

Once a packet has been sent, its `rest` is sent in any case.
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

_encoder = msgspec.json.Encoder()


StartTask = Callable[[Callable[[], Awaitable[None]]], None]
"""Starts a task, which runs until it ends."""


class StreamWriter:
    """Takes `fd`. `on_gone` is called when nobody is at the other end, `on_missing` when something
    is missed for the first time since the watcher knew all that it missed."""

    def __init__(
        self,
        fd: int,
        start_task: StartTask,
        on_gone: Callable[[], None],
        on_missing: Callable[[], None] | None = None,
    ) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)
        self._start_task = start_task
        self._on_missing = on_missing
        self._on_gone = on_gone
        self._rest: deque[msgspec.Struct] = deque()
        self._is_catching_up = False
        self.missed = 0
        """Items of the stream that this process could not send."""
        self._reported = 0
        """How many of them the watcher knows of."""
        self.source = os.getpid()

    @property
    def has_room(self) -> bool:
        """Whether the next packet is tried at all; if not, its items are counted as missed."""
        return not self._is_catching_up

    def send(self, packet: msgspec.Struct, count: int, rest: Iterable[msgspec.Struct] = ()) -> None:
        """Send a packet with `count` items, or count them as missed. The `rest` of the packet
        follows it, if need be later, with nothing in between."""
        if not self.has_room or not self._try_to_send(packet):
            self._catch_up_later()
            self.count_missed(count)
            return
        self._rest.extend(rest)
        if not self._send_rest():
            self._catch_up_later()

    def count_missed(self, count: int) -> None:
        """Count items as missed that there is no room for."""
        if count and self._sock.fileno() >= 0:
            is_first = self.missed == self._reported
            self.missed += count
            self._catch_up_later()
            if is_first and self._on_missing is not None:
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
            self._sock.send(_encoder.encode(packet), socket.MSG_DONTWAIT)
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
        if not self._is_catching_up and self._sock.fileno() >= 0:
            self._is_catching_up = True
            self._start_task(self._catch_up)

    async def _catch_up(self) -> None:
        """Wait for room, send what is left of a packet, and report how much was missed."""
        while self._sock.fileno() >= 0:
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                return
            if self._send_rest() and self._report_missed():
                self._is_catching_up = False
                return
            await trio.sleep(_RETRY_SECONDS)

    def _report_missed(self) -> bool:
        """Have the watcher know how much it missed; whether that was possible."""
        missed = Missed(source=self.source, missed=self.missed)
        if self.missed != self._reported and self._try_to_send(missed):
            self._reported = self.missed
        return self.missed == self._reported
