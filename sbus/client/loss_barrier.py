"""The barrier that shows which replies were lost with a worker that had packets of this client.

Replies do not say which requests they answer. Only the reply to `!/sync` does, and it comes after
the replies to all earlier requests: those that are still open then were lost.
"""

from typing import Protocol

from sbus.protocol import controls
from sbus.protocol.packets import encode_control


class Awaited(Protocol):
    """What waits for replies of one kind."""

    @property
    def has_open(self) -> bool: ...

    @property
    def newest(self) -> int: ...

    def settle(self, ticket: int) -> None: ...


class LossBarrier:
    """The `!/sync` of one connection that was sent last, or is to be sent."""

    def __init__(self, *kinds: Awaited) -> None:
        self.is_due = False
        """It could not be sent yet: try to read again soon."""
        self._kinds = kinds
        self._number = 0
        self._newest = [0 for _ in kinds]
        """Of each kind, what was sent before it."""

    def begin(self) -> bool:
        """Packets were lost; whether to send a barrier, as a reply has not come yet."""
        if not any(kind.has_open for kind in self._kinds):
            return False
        self._number += 1
        self.is_due = True
        return True

    def encode(self) -> bytes:
        """What is to be sent."""
        return encode_control(controls.SYNC, self._token())

    def note_sent(self) -> None:
        self.is_due = False
        self._newest = [kind.newest for kind in self._kinds]

    def replied(self, token: bytes) -> None:
        """The bus has replied to a `!/sync` with this token."""
        if token == self._token():
            for kind, ticket in zip(self._kinds, self._newest, strict=True):
                kind.settle(ticket)

    def _token(self) -> bytes:
        return b"%d" % self._number
