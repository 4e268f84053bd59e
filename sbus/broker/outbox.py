"""What goes to one client: straight to its socket, or through a backlog while that is full.

    flowing    nothing is queued: a message is sent at once
    queueing   the socket was full: messages stand in the backlog, a writer task sends them
    deaf       the peer takes no more: messages are counted as undelivered

The backlog's bound in messages is the capacity of a trio memory channel, which carries one token
for each message in the backlog; the messages themselves stand beside it, because a channel counts
no bytes. What comes when either bound is reached is discarded and counted. A run of discarded
messages stands in the backlog as one gap, at its place, and becomes a `!/lost` notice there.

    accepted = delivered + lost + backlog + undelivered        at any time
    tokens in the channel = messages in the backlog

Replies and notices are not messages: they are queued behind what was accepted before them, and the
session reads no further packet of a client that has one waiting, so there are few of them.

This module does not know who the client is, nor why it gets a message.
"""

import errno
import socket
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
import trio

from sbus.limits import Limits
from sbus.protocol.controls import lost_notice

_FULL = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})
_PEER_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN})
_SENDS_PER_CHECKPOINT = 64
_MEMORY_RETRY_SECONDS = 0.01
"""When the kernel has no memory for a packet, the socket is writable all the same."""


class OutboxStatistics(msgspec.Struct, frozen=True):
    """The ledger of one client, in messages, and the bytes of its backlog."""

    accepted: int
    delivered: int
    lost: int
    undelivered: int
    backlog: int
    backlog_bytes: int


class _Reply(msgspec.Struct, frozen=True):
    packet: bytes


class Outbox:
    """Deliveries to one client. Borrows `sock`; `start_writer` runs a task until it ends."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_backlog_bytes_max",
        "_full",
        "_messages_max",
        "_on_replied",
        "_send",
        "_sock",
        "_start_writer",
        "_tokens",
        "accepted",
        "deaf",
        "flowing",
        "lost",
        "notices",
        "replies_waiting",
        "undelivered",
    )

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        start_writer: Callable[[Callable[[], Awaitable[None]]], None],
        on_replied: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._send = sock.send
        self._start_writer = start_writer
        self._on_replied = on_replied
        self._messages_max = limits.backlog_messages_max
        self._backlog_bytes_max = limits.backlog_bytes_max
        self._backlog: deque[bytes | int | _Reply] = deque()
        self._backlog_bytes = 0
        self._tokens: (
            tuple[trio.MemorySendChannel[None], trio.MemoryReceiveChannel[None]] | None
        ) = None
        self._full = False
        """No token fits: a discarded message need not find that out anew."""
        self.flowing = True
        self.deaf = False
        self.notices = False
        self.accepted = 0
        self.lost = 0
        self.undelivered = 0
        self.replies_waiting = 0

    def deliver(self, packet: bytes) -> None:
        """Accept a message for this client."""
        self.accepted += 1
        if self.flowing:
            try:
                self._send(packet)
                return
            except OSError as error:
                self._stop_flowing(error)
        self._queue(packet)

    def reply(self, packet: bytes) -> None:
        """Send something of the server's own, behind everything accepted so far."""
        if self.flowing:
            try:
                self._send(packet)
                return
            except OSError as error:
                self._stop_flowing(error)
        if not self.deaf:
            self._backlog.append(_Reply(packet))
            self.replies_waiting += 1

    def send_last(self, packet: bytes) -> None:
        """Send a last word past the backlog, if the socket takes it."""
        if not self.deaf:
            try:
                self._send(packet)
            except OSError as error:
                self._check(error)

    def _stop_flowing(self, error: OSError) -> None:
        self.flowing = False
        if error.errno not in _FULL:
            self._check(error)
            self.deaf = True
            return
        if self._tokens is None:
            self._tokens = trio.open_memory_channel[None](self._messages_max)
        self._start_writer(self._write)

    def _check(self, error: OSError) -> None:
        """Let pass only what a peer can cause."""
        if error.errno not in _FULL and error.errno not in _PEER_GONE:
            raise error

    def _queue(self, packet: bytes) -> None:
        if self.deaf or self._tokens is None:
            self.undelivered += 1
            return
        if self._full or self._backlog_bytes + len(packet) > self._backlog_bytes_max:
            self._lose()
            return
        try:
            self._tokens[0].send_nowait(None)
        except trio.WouldBlock:
            self._full = True
            self._lose()
            return
        self._backlog.append(packet)
        self._backlog_bytes += len(packet)

    def _lose(self) -> None:
        self.lost += 1
        if self._backlog and isinstance(self._backlog[-1], int):
            self._backlog[-1] += 1
        else:
            self._backlog.append(1)

    async def _write(self) -> None:
        """Send the backlog; ends when it is empty or the peer takes no more."""
        sent = 0
        while self._backlog:
            try:
                self._send_first()
                sent += 1
            except OSError as error:
                if error.errno not in _FULL:
                    self._check(error)
                    self.close()
                    self._on_replied()
                    return
                sent = 0
                if not await self._wait_for_room(error):
                    return
            if sent == _SENDS_PER_CHECKPOINT:
                sent = 0
                await trio.lowlevel.checkpoint()
        self.flowing = not self.deaf

    async def _wait_for_room(self, error: OSError) -> bool:
        """Wait until trying again makes sense; False when the socket was closed meanwhile."""
        if error.errno != errno.EAGAIN:
            await trio.sleep(_MEMORY_RETRY_SECONDS)
            if self.deaf:
                return False
        try:
            await trio.lowlevel.wait_writable(self._sock)
        except trio.ClosedResourceError:
            return False
        return True

    def _send_first(self) -> None:
        first = self._backlog[0]
        if isinstance(first, bytes):
            self._send(first)
            self._backlog_bytes -= len(first)
            self._backlog.popleft()
            if self._tokens is not None:
                self._tokens[1].receive_nowait()
                self._full = False
        elif isinstance(first, _Reply):
            self._send(first.packet)
            self._backlog.popleft()
            self.replies_waiting -= 1
            self._on_replied()
        else:
            if self.notices:
                self._send(lost_notice(first))
            self._backlog.popleft()

    def close(self) -> None:
        """Deliver no more; what is in the backlog stays undelivered."""
        self.undelivered += sum(isinstance(item, bytes) for item in self._backlog)
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._tokens is not None:
            for end in self._tokens:
                end.close()
            self._tokens = None
        self.replies_waiting = 0
        self.flowing = False
        self.deaf = True

    def statistics(self) -> OutboxStatistics:
        backlog = 0 if self._tokens is None else self._tokens[0].statistics().current_buffer_used
        return OutboxStatistics(
            accepted=self.accepted,
            delivered=self.accepted - self.lost - self.undelivered - backlog,
            lost=self.lost,
            undelivered=self.undelivered,
            backlog=backlog,
            backlog_bytes=self._backlog_bytes,
        )
