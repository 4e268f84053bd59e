"""What has arrived of one channel of one origin, and what is missing.

Messages come by one or more *ways*, each in the order of their numbers, and each may lose some. So
a way that has told a number brings nothing before it any more: that number is the way's *mark*.
Messages are delivered in order. One that is missing is waited for while a way may still bring it,
and once all ways have passed it, it is a gap. A way that is silent for `WAY_SECONDS` counts no
more.

    delivered and gaps = all numbers from the first to `next` − 1, each once and in order
    every number that is held > next
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

WAY_SECONDS: Final = 5.0
"""A way tells its mark each second."""
HELD_MAX: Final = 4_096
"""Messages that wait for one before them; with more, that is a gap."""
RETIRED_MAX: Final = 16
"""Epochs of the past that are remembered, so that what comes late does not begin them anew."""

T = TypeVar("T")


class Gap(msgspec.Struct, frozen=True):
    """Messages that are missing: so many, from the first on; None if nobody knows how many."""

    epoch: str
    first: int
    count: int | None


class LedgerCounts(msgspec.Struct):
    """What has come of the messages of a channel of an origin."""

    delivered: int = 0
    missing: int = 0
    """In gaps of known size."""
    unknown_gaps: int = 0
    duplicates: int = 0
    stale: int = 0
    """Of an earlier epoch."""


class Ledger(Generic[T]):
    """`epoch` and `last`: what was delivered before, if anything; `retired`: earlier epochs."""

    def __init__(self, epoch: str = "", last: int = 0, retired: Iterable[str] = ()) -> None:
        self.epoch = epoch
        """Empty until something has come."""
        self.next = last + 1
        self.counts = LedgerCounts()
        self.ways: dict[Any, float] = {}
        """When each was heard last."""
        self._marks: dict[Any, int] = {}
        self._held: dict[int, T] = {}
        self.retired: deque[str] = deque(retired, RETIRED_MAX)

    @property
    def held(self) -> int:
        """How many messages wait for one before them."""
        return len(self._held)

    @property
    def behind(self) -> int:
        """How many messages are not delivered yet that a way has told of."""
        return max(0, *self._marks.values(), self.next - 1) + 1 - self.next

    def feed(
        self, way: Any, epoch: str, number: int, item: T, now: float, passed: int | None = None
    ) -> list[T | Gap]:
        """A message has come by this way; returns what to deliver now. `passed` is the way's mark
        if it may still bring what is behind that and before this message."""
        if epoch != self.epoch:
            gaps = self._begin(epoch, number)
            if gaps is None:
                return []
            return [*gaps, *self.feed(way, epoch, number, item, now, passed)]
        self._mark(way, number if passed is None else passed, now)
        if number == self.next and not self._held:
            self.next += 1
            self.counts.delivered += 1
            return [item]
        if number < self.next or number in self._held:
            self.counts.duplicates += 1
        else:
            self._held[number] = item
        return self._settle()

    def heartbeat(self, way: Any, epoch: str, last: int, now: float) -> list[T | Gap]:
        """A way has brought everything up to this number that it will bring."""
        if epoch != self.epoch:
            gaps = self._begin(epoch, last + 1)
            if gaps is None:
                return []
            return [*gaps, *self.heartbeat(way, epoch, last, now)]
        self._mark(way, last, now)
        return self._settle()

    def expire(self, now: float) -> list[T | Gap]:
        """Give up the ways that are silent. Without a way, nothing that is missing will come."""
        silent = [way for way, heard in self.ways.items() if now - heard > WAY_SECONDS]
        for way in silent:
            del self.ways[way], self._marks[way]
        if not silent:
            return []
        return self._settle() if self.ways else self.give_up()

    def give_up(self) -> list[T | Gap]:
        """Deliver what waits: nothing before it will come."""
        given: list[T | Gap] = []
        while self._held:
            self._skip_to(min(self._held), given)
        return given

    def waiting(self) -> Iterable[T]:
        """What waits for a message before it."""
        return self._held.values()

    def check_invariants(self) -> None:
        assert all(number > self.next for number in self._held)
        assert self.ways.keys() == self._marks.keys()
        assert len(self._held) <= HELD_MAX

    def _begin(self, epoch: str, first: int) -> list[T | Gap] | None:
        """Begin this epoch, unless it is one of the past."""
        if epoch in self.retired:
            self.counts.stale += 1
            return None
        given: list[T | Gap] = []
        if not self.epoch:
            self.next = first
        else:
            given = self.give_up()
            given.append(Gap(self.epoch, self.next, None))
            self.counts.unknown_gaps += 1
            self.retired.append(self.epoch)
            self.next = 1
        self.epoch = epoch
        self.ways.clear()
        self._marks.clear()
        return given

    def _mark(self, way: Any, number: int, now: float) -> None:
        self.ways[way] = now
        if self._marks.get(way, -1) < number:
            self._marks[way] = number

    def _settle(self) -> list[T | Gap]:
        given: list[T | Gap] = []
        self._deliver_held(given)
        passed = min(self._marks.values(), default=0)
        while self.next <= passed:
            self._skip_to(min([*self._held, passed + 1]), given)
        while len(self._held) > HELD_MAX:
            self._skip_to(min(self._held), given)
        return given

    def _skip_to(self, number: int, given: list[T | Gap]) -> None:
        gap = Gap(self.epoch, self.next, number - self.next)
        self.counts.missing += number - self.next
        given.append(gap)
        self.next = number
        self._deliver_held(given)

    def _deliver_held(self, given: list[T | Gap]) -> None:
        while self.next in self._held:
            given.append(self._held.pop(self.next))
            self.counts.delivered += 1
            self.next += 1
