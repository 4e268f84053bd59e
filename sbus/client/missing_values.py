"""The values that a service of last values lacks, as far as it can know them.

A *key* whose newest message was not kept is missing until it has another message. In a *gap* the
service has missed messages of unknown keys, so any value from before the gap may be outdated. A
joiner is told of the gap if it gets such a value, or none at all. When all values from before the
gap have been replaced, the service knows as much as one that was started at the gap.
"""

from collections.abc import Callable
from typing import NamedTuple

KEYS_MAX = 1_024
"""Keys that are remembered; more are a gap."""
GAPS_MAX = 64
"""Gaps that are told apart; older ones are one."""


class _Gap(NamedTuple):
    place: int
    """Among the values."""
    messages: int | None


class MissingValues:
    """Those of one service."""

    def __init__(self) -> None:
        self._keys: dict[bytes, None] = {}
        """The one that is missing for the longest time is the first."""
        self._gaps: list[_Gap] = []
        """The oldest one first."""

    def add_key(self, key: bytes, place: int) -> None:
        """The newest message of this key is not kept, from this place on."""
        self._keys[key] = None
        if len(self._keys) > KEYS_MAX:
            del self._keys[next(iter(self._keys))]
            self.add_gap(place, 1)

    def replaced(self, key: bytes) -> None:
        """There is another message of this key."""
        self._keys.pop(key, None)

    def add_gap(self, place: int, count: int | None) -> None:
        """So many messages, of any keys, were missed at this place; None: nobody knows how many."""
        self._gaps.append(_Gap(place, count))
        if len(self._gaps) > GAPS_MAX:
            older, newer = self._gaps[:2]
            self._gaps[:2] = [_Gap(newer.place, _sum([older.messages, newer.messages]))]

    def forget_gaps_before(self, place: int) -> None:
        """No value from before this place is kept."""
        while self._gaps and self._gaps[0].place < place:
            del self._gaps[0]

    def among(self, matches: Callable[[bytes], object], oldest: int | None) -> int | None:
        """How many messages are missing for a joiner whose pattern `matches`, and whose `oldest`
        value has this place; None if nobody knows."""
        keys = sum(1 for key in self._keys if matches(key))
        gaps = [gap.messages for gap in self._gaps if oldest is None or oldest < gap.place]
        return _sum([keys, *gaps])


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
