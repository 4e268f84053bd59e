"""`sbusctl top --by key`: under which keys is published, out of the monitor's stream.

Messages are counted by the first segments of their keys. That is exact as long as this program is
as fast as the bus: what the stream missed is told. Strangers choose their keys, so there is an end
to the number of prefixes that are told apart; messages of any more are counted together.

This module does not know how rows are shown.
"""

from sbus.cli.top.top import Clock, KeyLoad, Load, Look
from sbus.client.admin import AdminConnection
from sbus.client.message_joiner import MissedItems, MonitoredMessage
from sbus.client.streams import MessageStream
from sbus.protocol.text import from_text

PREFIXES_MAX = 4_096
_PACKET_OVERHEAD_BYTES = len(b"MSG \0")


class KeySource:
    """Prefixes of `depth` segments. Takes the connection over; what came before the first look is
    not counted."""

    by = "key"

    def __init__(self, admin: AdminConnection, separator: str, depth: int) -> None:
        self._admin = admin
        self._stream = MessageStream(admin)
        self._clock = Clock()
        self._counts = PrefixCounts(separator, depth)
        self._missed = 0

    def fileno(self) -> int:
        return self._admin.fileno()

    def receive(self) -> None:
        for item in self._stream.receive_many(0.0):
            if isinstance(item, MissedItems):
                self._missed += item.count
            else:
                self._counts.add(item)

    def look(self) -> Look | None:
        self.receive()
        seconds = self._clock.lap()
        rows: list[Load] = [*self._counts.take(seconds or 1.0)]
        missed, self._missed = self._missed, 0
        return None if seconds is None else Look(seconds, rows, self._stream.unanswered, missed)


class PrefixCounts:
    """Messages, their bytes and their recipients, by prefix."""

    def __init__(self, separator: str, depth: int) -> None:
        self._separator = separator
        self._depth = depth
        self._counts: dict[str | None, list[int]] = {}
        """None: of all prefixes for which there was no room."""

    def add(self, message: MonitoredMessage) -> None:
        """Count a message; of a secret one the payload's size is not known, and taken for 0."""
        prefix: str | None = self._prefix(message.key)
        if prefix not in self._counts and len(self._counts) >= PREFIXES_MAX:
            prefix = None
        counts = self._counts.setdefault(prefix, [0, 0, 0])
        counts[0] += 1
        counts[1] += _PACKET_OVERHEAD_BYTES + len(from_text(message.key)) + (message.size or 0)
        counts[2] += message.recipients or 0

    def _prefix(self, key: str) -> str:
        segments = key.split(self._separator, self._depth)
        if len(segments) <= self._depth:
            return key
        return self._separator.join((*segments[: self._depth], ""))

    def take(self, seconds: float) -> list[KeyLoad]:
        """What was counted so far, as rates; counting begins anew."""
        counts, self._counts = self._counts, {}
        return [
            KeyLoad(
                prefix=prefix,
                messages_in_per_second=messages / seconds,
                bytes_in_per_second=size_bytes / seconds,
                delivered_per_second=recipients / seconds,
            )
            for prefix, (messages, size_bytes, recipients) in counts.items()
        ]
