"""The state that a lost connection needs to be made again.

A connection remembers its subscriptions and the newest setting of each kind. When it is lost, it
waits, connects, and restores them. It reports that two facts are unknown: how many messages the bus
has published meanwhile, and which of the client's own messages it has processed. Nothing is
published again.

A connection forgets a subscription that the bus has refused, if it knows which one that was: the
refusal comes before the reply to the next barrier, and only one packet that it may concern was sent
since the barrier before.

Waits grow and are drawn at random, so that the clients of a restarted bus do not all come at the
same instant. They begin small again once a connection has lasted.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from sbus.client.requests import Barrier
from sbus.client.routes import spelling
from sbus.protocol import controls, presence
from sbus.protocol.packets import (
    CONTROL_WORD,
    NUL,
    PUBLISH_WORD,
    SUBSCRIBE_WORD,
    UNSUBSCRIBE_WORD,
    encode_subscribe,
)

Wait = float | Literal["readable"]
"""For so many seconds, or until there is something to read."""

DELAY_SECONDS_MIN = 0.05
DELAY_SECONDS_MAX = 2.0
_NAMES: Final = presence.JOIN.rpartition(b"/")[0]
"""The kind of joins and leaves."""
LASTING_SECONDS = 5.0
"""After so long a connection counts as good."""

_QUESTIONS: Final = {controls.WHOAMI, controls.ME, controls.SYNC}
_SETTINGS: Final = controls.CLIENT_CONTROLS - _QUESTIONS - {presence.MEMBERS}


class _Sent(NamedTuple):
    """How much was sent on the present connection."""

    messages: int = 0
    changes: int = 0
    """Packets that are no messages."""
    refusable: int = 0
    """Those of them that the bus may refuse."""
    pattern: bytes | None = None
    """That of the last of these, if it has subscribed."""


class Reconnection:
    """What one connection needs to be made again."""

    def __init__(self, barrier: Barrier, clock: Callable[[], float] = time.monotonic) -> None:
        self._barrier = barrier
        self._clock = clock
        self._sync_key = barrier.echo_key
        self._settings: dict[bytes, bytes] = {}
        """The newest packet of each kind, which is the key without its last segment. So a join and
        a leave are of one kind."""
        self._patterns: Counter[bytes] = Counter()
        self._published = 0
        self._changes = 0
        self._refusable = 0
        self._pattern: bytes | None = None
        self._confirmed = _Sent()
        """What of it the bus has processed, as far as is known."""
        self._barriers: deque[tuple[int, _Sent]] = deque()
        """Tickets without a reply, and what had been sent before each."""
        self._delay_seconds = DELAY_SECONDS_MIN
        self._made_at = self._clock()

    def note_sent(self, packet: bytes) -> None:
        """Remember what this packet has changed."""
        if packet == self._barrier.greeting:
            return
        if packet.startswith(PUBLISH_WORD):
            key = packet[len(PUBLISH_WORD) : packet.index(NUL)]
            self._published += key != self._sync_key
            return
        self._changes += 1
        if packet.startswith(SUBSCRIBE_WORD):
            pattern = spelling(packet[len(SUBSCRIBE_WORD) :])
            self._patterns[pattern] += 1
            self._note_refusable(pattern)
        elif packet.startswith(UNSUBSCRIBE_WORD):
            self._forget(spelling(packet[len(UNSUBSCRIBE_WORD) :]))
        elif (key := packet[len(CONTROL_WORD) :].partition(NUL)[0]) not in _QUESTIONS:
            if _is_setting(key):
                self._settings[key.rpartition(b"/")[0]] = packet
            self._note_refusable(None)

    def _note_refusable(self, pattern: bytes | None) -> None:
        self._refusable += 1
        self._pattern = pattern

    def _sent(self) -> _Sent:
        return _Sent(self._published, self._changes, self._refusable, self._pattern)

    def _forget(self, pattern: bytes) -> None:
        if self._patterns[pattern] > 1:
            self._patterns[pattern] -= 1
        else:
            del self._patterns[pattern]

    def settings(self) -> list[bytes]:
        """The packets that make the settings again; the first one is that of a new connection."""
        return [self._barrier.greeting, *self._settings.values()]

    @property
    def name(self) -> bytes | None:
        """The one of them that takes a name, or gives it up."""
        return self._settings.get(_NAMES)

    def subscriptions(self) -> list[bytes]:
        """The packets that subscribe again."""
        return [encode_subscribe(pattern) for pattern in self._patterns.elements()]

    def note_barrier(self, ticket: int) -> None:
        """A barrier was sent: its reply confirms everything that was published before."""
        self._count_confirmed()
        self._barriers.append((ticket, self._sent()))

    def _count_confirmed(self) -> None:
        while self._barriers and self._barrier.is_settled(self._barriers[0][0]):
            self._confirmed = self._barriers.popleft()[1]

    def note_refusal(self) -> None:
        """The bus has refused a packet, one before the oldest barrier without a reply."""
        self._count_confirmed()
        sent = self._barriers[0][1] if self._barriers else self._sent()
        is_only_one = sent.refusable - self._confirmed.refusable == 1
        if is_only_one and sent.messages == self._confirmed.messages and sent.pattern is not None:
            self._forget(sent.pattern)

    def note_lost(self) -> int:
        """The connection has ended; returns how many messages on it are unconfirmed."""
        self._count_confirmed()
        unconfirmed = self._published - self._confirmed.messages
        self._published = self._changes = self._refusable = 0
        self._confirmed = _Sent()
        self._barriers.clear()
        if self._clock() - self._made_at > LASTING_SECONDS:
            self._delay_seconds = DELAY_SECONDS_MIN
        return unconfirmed

    def has_unconfirmed_changes(self) -> bool:
        """Whether the bus may not have processed a packet that is no message."""
        self._count_confirmed()
        return self._changes > self._confirmed.changes

    def note_made(self) -> None:
        """The connection is there again; the subscriptions that are made again now are
        unconfirmed."""
        self._made_at = self._clock()
        self._changes += 1
        for pattern in self._patterns.elements():
            self._note_refusable(pattern)

    def next_delay(self) -> float:
        """How many seconds to wait before the next attempt."""
        longest = self._delay_seconds
        self._delay_seconds = min(2 * longest, DELAY_SECONDS_MAX)
        return random.uniform(longest / 2, longest)


def _is_setting(key: bytes) -> bool:
    return key in _SETTINGS or controls.flood_choice(key) is not None
