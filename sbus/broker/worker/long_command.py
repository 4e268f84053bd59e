"""A command of the front that takes a worker long: it is carried out in pieces, between turns.

One such command is carried out at a time. Its work is an iterator, which is asked for one piece
after the other, and a `Done` tells the front when it has ended, and why it failed if it did.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.worker_link import WorkerLink

_UNITS_PER_PIECE = 1_024
_UNITS_PER_CLIENT = 64
"""To describe or to restore a client takes some 20 us, and a third of a microsecond more for each
pattern, or message in its backlog."""
BYTES_PER_UNIT = 256
"""Of a record that is encoded or decoded."""
_RETRY_SECONDS = 0.001
"""When a worker looks again whether what it waits for has happened."""


T = TypeVar("T")


class LongCommand:
    """Of one worker."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._work: Iterator[bool] | None = None
        """True for a piece, False where that has to wait."""
        self._number = 0
        self.why_not = ""
        self.changes: Counter[int] = Counter()
        """Units that it takes to follow what has changed, for each user."""

    def begin(self, number: int, work: Iterator[bool]) -> None:
        """Carry out the command of this number."""
        self._number, self._work = number, work
        self.changes.clear()

    def fail(self, why_not: str) -> None:
        """Something that the next `Done` depends on was not possible."""
        self.why_not = self.why_not or why_not

    def give_up(self) -> None:
        """Carry out nothing, and forget failures."""
        self._work, self.why_not = None, ""

    def go_on(self) -> float:
        """Do a piece of what takes time; returns the seconds until this is to be called again,
        infinite when nothing is left."""
        if self._work is None:
            return math.inf
        has_worked = next(self._work, None)
        if has_worked is None:
            self._work = None
            most = self.changes.most_common(1)
            uid = most[0][0] if most else 0
            self._link.send(protocol.Done(self._number, self.why_not, self.changes.total(), uid))
            return math.inf
        return 0.0 if has_worked else _RETRY_SECONDS


def pieces(items: Iterable[T], units: Callable[[T], int]) -> Iterator[list[T]]:
    """Clients, in lists that take about as long as each other; `units` is what each takes besides
    what every client does."""
    piece: list[T] = []
    sum_units = 0
    for item in items:
        piece.append(item)
        sum_units += _UNITS_PER_CLIENT + units(item)
        if sum_units >= _UNITS_PER_PIECE:
            yield piece
            piece, sum_units = [], 0
    if piece:
        yield piece
