"""The origin of what is being delivered: who has published it, and its place in the total order.

It is set for each publish batch and each log block, and its place for each message. Outboxes of
clients that want to know the sender put it before the message; the compiled step does the same.
"""

from sbus.compiled import OriginRecord
from sbus.protocol.controls import sender_prefix
from sbus.shared.log_block import Publisher


class Origin(OriginRecord):
    """Of one worker."""

    __slots__ = ()

    def __init__(self) -> None:
        self.set(Publisher(0, 0, 0, 0, 0), 0)

    def set(self, publisher: Publisher, place: int) -> None:
        """What comes next was published by this client, at this place."""
        self.client, self.uid, self.gid, self.pid, self.account_place = publisher
        self.place = place

    def prefix(self) -> bytes:
        """What a client that wants to know the sender gets before the message."""
        return sender_prefix(self.place, self.client, self.gid, self.uid, self.pid)
