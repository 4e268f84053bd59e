"""The queues that a message goes to: the connection's own, and one for each subscription object.

The bus sends a message once to a connection, however many of its patterns match. As long as there
are no subscription objects, all messages go to the connection's own queue, and reading stops when
that is full. Once there has been one, a message goes to each queue that has a pattern for it. While
there is one, its reader and the others must not make each other wait, so reading goes on, and a
full queue loses messages.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sbus.client.message_queue import Lost, MessageQueue
from sbus.protocol.keys import Dialect
from sbus.protocol.packets import SUBSCRIBE_WORD, UNSUBSCRIBE_WORD, Message
from sbus.protocol.pattern_matching import compile_patterns

Queue = MessageQueue[Any]

_STARS = re.compile(rb"\*+")


class _Subscription(NamedTuple):
    patterns: list[bytes]
    matches: Callable[[bytes], object]
    queue: Queue
    with_senders: bool


class Routes:
    """The queues of one connection, with their patterns."""

    def __init__(self, own: Queue, dialect: Dialect) -> None:
        self._own = own
        self._dialect = dialect
        self._own_patterns: Counter[bytes] = Counter()
        self._own_matches: Callable[[bytes], object] | None = None
        """Compiled when it is needed."""
        self._subscriptions: dict[int, _Subscription] = {}
        """By the identity of the queue."""
        self.are_shared = False
        """There has been a subscription object."""
        self.shows_senders = False
        """The program has asked who publishes its messages."""

    def note_subscribed(self, packet: bytes) -> None:
        """The connection itself has sent this `SUB`."""
        self._own_patterns[spelling(packet[len(SUBSCRIBE_WORD) :])] += 1
        self._own_matches = None

    def note_unsubscribed(self, packet: bytes) -> None:
        """The connection itself has sent this `UNSUB`."""
        self._own_patterns -= Counter([spelling(packet[len(UNSUBSCRIBE_WORD) :])])
        self._own_matches = None

    def open(self, packets: Iterable[bytes], queue: Queue, *, with_senders: bool = False) -> None:
        """From now on, messages that match a pattern of one of these `SUB`, and no others, go to
        this queue; `with_senders` not as they are `shown`."""
        patterns = [packet[len(SUBSCRIBE_WORD) :] for packet in packets]
        matches = compile_patterns(patterns, self._dialect)
        opened = _Subscription(list(map(spelling, patterns)), matches, queue, with_senders)
        self._subscriptions[id(queue)] = opened
        self.are_shared = True

    @property
    def never_wait(self) -> bool:
        """Reading goes on when a queue is full, as there is a subscription object."""
        return bool(self._subscriptions)

    def close(self, queue: Queue) -> None:
        """No more go there."""
        self._subscriptions.pop(id(queue), None)
        queue.clear()

    def have(self, packet: bytes) -> bool:
        """Whether a queue is for the pattern of this `SUB`."""
        pattern = spelling(packet[len(SUBSCRIBE_WORD) :])
        opened = self._subscriptions.values()
        return pattern in self._own_patterns or any(pattern in one.patterns for one in opened)

    def clear(self) -> None:
        """Forget everything that waits."""
        self._own.clear()
        for opened in self._subscriptions.values():
            opened.queue.clear()

    def shown(self, message: Message) -> Message:
        """A message as the program gets it."""
        if self.shows_senders or message.sender is None:
            return message
        return Message(message.key, message.payload)

    def deliver(self, message: Message) -> None:
        """Put a message into the queues that it is for; only if they `are_shared`."""
        if self._own_matches is None:
            self._own_matches = compile_patterns(self._own_patterns, self._dialect)
        shown = self.shown(message)
        if self._own_matches(message.key):
            add = self._own.add_or_drop if self.never_wait else self._own.add
            add(shown)
        for _, matches, queue, with_senders in self._subscriptions.values():
            if matches(message.key):
                queue.add_or_drop(message if with_senders else shown)

    def deliver_gap(self, gap: Lost) -> None:
        """Nobody knows which patterns the missing messages match, so every queue learns of it."""
        if self._own_patterns or not self.are_shared:
            self._own.add_gap(gap)
        for opened in self._subscriptions.values():
            opened.queue.add_gap(gap)


def spelling(pattern: bytes) -> bytes:
    """The one of a pattern's spellings that stands for all, as `UNSUB` may use another."""
    return _STARS.sub(b"*", pattern)
