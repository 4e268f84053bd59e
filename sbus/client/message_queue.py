"""Messages that wait for the program, and losses exactly where the gaps are."""

import logging
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Generic, Literal, TypeVar

import msgspec

from sbus.errors import ConnectionInterrupted, MessagesLost
from sbus.protocol.packets import Message

Losses = Literal["raise", "report", "log"]
"""For a gap in the messages, MessagesLost is raised there, or it is an item, Lost, or a warning."""

logger = logging.getLogger("sbus")


class Lost(msgspec.Struct, frozen=True):
    """Here `count` messages for this client were dropped; None when the number is unknown."""

    count: int | None

    def error(self) -> MessagesLost:
        """What is raised for it."""
        return MessagesLost(self.count)


class Reconnected(Lost, frozen=True):
    """Here the connection was lost for this `reason`; messages may be missing up to here, where it
    is back. The `count` is None."""

    reason: str

    def error(self) -> ConnectionInterrupted:
        return ConnectionInterrupted(self.reason)


class NotKept(Lost, frozen=True):
    """A service of last values has not kept `count` messages of those that belong here."""

    def error(self) -> MessagesLost:
        error = MessagesLost(self.count)
        number = "an unknown number of" if self.count is None else self.count
        error.args = (f"the service of last values has not kept {number} messages",)
        return error


Item = TypeVar("Item", bound=Message | Lost)


class MessageQueue(Generic[Item]):
    """Messages in order; `Item` is Message, or also Lost if losses are reported."""

    def __init__(self, *, losses: Losses, messages_max: int, bytes_max: int) -> None:
        """`bytes_max` counts keys and payloads, and may be exceeded by one message."""
        self.bytes = 0
        self._losses = losses
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._items: deque[Any] = deque()
        self._gaps_waiting = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_room(self) -> bool:
        return len(self._items) < self._messages_max and self.bytes < self._bytes_max

    @property
    def room(self) -> tuple[int, int]:
        """For how many messages, and bytes, there is room."""
        return self._messages_max - len(self._items), self._bytes_max - self.bytes

    def add_all(self, messages: Iterable[Message], size_bytes: int) -> None:
        """Add messages of this size together, also to a queue without room."""
        self.bytes += size_bytes
        self._items.extend(messages)

    def add(self, message: Message) -> None:
        """Add a message, also to a queue without room."""
        self.bytes += len(message.key) + len(message.payload)
        self._items.append(message)

    def add_or_drop(self, message: Message) -> None:
        """Add a message; without room for it, it counts as lost there."""
        if self.has_room:
            self.add(message)
        else:
            self.add_gap(Lost(1))

    def add_gap(self, gap: Lost) -> None:
        """Messages are missing here."""
        if self._items and isinstance(self._items[-1], Lost):
            self._items[-1] = _joined(self._items[-1], gap)
            return
        self._gaps_waiting += 1
        self._items.append(gap)

    def take(self) -> Item | None:
        """The next item, or None while there is none. Raises MessagesLost in its place, unless
        losses are reported or logged."""
        if self._gaps_waiting:
            self._log_gap()
        return self._pop() if self._items else None

    def take_many(self, limit: int) -> list[Item]:
        """Up to `limit` items, perhaps none, up to the next loss; raises the same as `take`."""
        if limit < 1:
            raise ValueError("receive_many takes at least one message")
        items: list[Item]
        if self._gaps_waiting:
            self._log_gap()
        if len(self._items) <= limit and not self._gaps_waiting:
            items = list(self._items)
            self.clear()
        else:
            items = []
            while len(items) < limit and self._items and not (items and self._is_loss_next()):
                items.append(self._pop())
        return items

    def _pop(self) -> Item:
        item: Item = self._items.popleft()
        if isinstance(item, Lost):
            self._gaps_waiting -= 1
            if self._losses == "raise":
                raise item.error()
        else:
            self.bytes -= len(item.key) + len(item.payload)
        return item

    def _is_loss_next(self) -> bool:
        return self._losses != "report" and isinstance(self._items[0], Lost)

    def _log_gap(self) -> None:
        """If a gap is next, and losses are logged, do that instead."""
        if self._losses == "log" and isinstance(self._items[0], Lost):
            logger.warning("%s", self._items.popleft().error())
            self._gaps_waiting -= 1

    def clear(self) -> None:
        """Forget everything that waits."""
        self._items.clear()
        self.bytes = 0
        self._gaps_waiting = 0

    def check_invariants(self) -> None:
        """bytes == Σ bytes in the queue; gaps waiting == losses in it; no two are adjacent."""
        waiting = [item for item in self._items if isinstance(item, Message)]
        assert self.bytes == sum(len(item.key) + len(item.payload) for item in waiting)
        assert self._gaps_waiting == len(self._items) - len(waiting)
        kinds = [isinstance(item, Lost) for item in self._items]
        assert (True, True) not in pairwise(kinds)


def _joined(before: Lost, gap: Lost) -> Lost:
    """Two gaps without a message between them, as one."""
    for item in (gap, before):
        if isinstance(item, Reconnected):
            return item
    if before.count is None or gap.count is None:
        return Lost(None)
    return Lost(before.count + gap.count)
