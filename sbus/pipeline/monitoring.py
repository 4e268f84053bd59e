"""Receiving messages for a recording by the stream of an administrator: with who published them.

The stream tells also how many received a message, and of secret messages the key. What the bus
could not send because it was not read fast enough is a loss in its place.

Knows nothing of what becomes of a message.
"""

from collections.abc import Sequence

import trio

from sbus.client.admin import AdminConnection
from sbus.client.inbox import Lost
from sbus.client.message_joiner import MissedItems
from sbus.client.streams import MessageStream
from sbus.pipeline.pending import PendingMonitored

_LOOK_SECONDS = 0.02
"""Messages wait for others that came before them; nothing tells when that is over."""
_CATCH_UP_SECONDS = 0.1
"""No message that was published before is told later, if its worker is not busy."""


class MonitorSource:
    """Receives what matches `patterns` into `pending`, by a connection that it takes."""

    def __init__(
        self, connection: AdminConnection, patterns: Sequence[bytes], pending: PendingMonitored
    ) -> None:
        self._connection = connection
        self._patterns = patterns
        self._pending = pending
        self._stream: MessageStream | None = None

    async def begin(self) -> None:
        """Begin the stream: what is published after this returns is received.

        Raises AdminError, Disconnected.
        """
        self._stream = await trio.to_thread.run_sync(self._begin)

    def _begin(self) -> MessageStream:
        return MessageStream(self._connection, self._patterns, payload=True)

    async def receive(self) -> None:
        """Receive until cancelled, whereby nothing is lost. Raises Disconnected."""
        while True:
            with trio.move_on_after(_LOOK_SECONDS):
                await trio.lowlevel.wait_readable(self._connection.fileno())
            if self._pending.is_full:
                await self._pending.wait_room()
            self._take()

    async def catch_up(self) -> None:
        """Receive what was published before."""
        with trio.move_on_after(_CATCH_UP_SECONDS):
            await self.receive()

    def close(self) -> None:
        self._connection.close()

    def _take(self) -> None:
        assert self._stream is not None
        items = self._stream.receive_many(0)
        if items:
            self._pending.put(
                [Lost(item.count) if isinstance(item, MissedItems) else item for item in items]
            )
