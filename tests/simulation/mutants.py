"""Mistakes that are made on purpose, to show that simulations find them."""

from contextlib import AbstractContextManager
from typing import cast
from unittest.mock import patch
from weakref import WeakKeyDictionary

from sbus.broker.front.supervised_worker import SupervisedWorker
from sbus.shared import in_flight
from sbus.shared.in_flight import WALKED, InFlight
from sbus.shared.log_block import LogBlock
from sbus.shared.log_share import LogShare
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import LOG_CURSOR, SELECTOR
from tests.simulation.fibers import Fiber, Killed
from tests.simulation.workers import SimulatedLock


class _LateWords:
    """Control words; each store is made when the next one comes, the last one by `finish`."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._late: tuple[int, int] | None = None

    def __getitem__(self, at: int) -> int:
        if self._late is not None and self._late[0] == at:
            return self._late[1]
        return int(self._words[at])

    def __setitem__(self, at: int, value: int) -> None:
        self.finish()
        self._late = at, value

    def finish(self) -> None:
        if self._late is not None:
            at, self._words[at] = self._late
            self._late = None


def _append_with_early_flip(
    self: OrderedLog,
    words: memoryview,
    log_block: LogBlock,
    share: LogShare,
    order_place: int = 0,
) -> int:
    """The selector is flipped before the last store that appends a log block, in Python's step. A
    worker that is to die in this tick dies in between."""
    late = _LateWords(words)
    woken = _real_append(self, cast(memoryview, late), log_block, share, order_place)
    lock = self._memory.lock
    assert isinstance(lock, SimulatedLock)
    if woken >= 0:
        lock.words[SELECTOR] = lock._spare
        if Fiber.current is not None and Fiber.current.is_doomed:
            raise Killed
    late.finish()
    return woken


def _begin_block_without_clearing(self: InFlight, position: int) -> int:
    """The progress of an earlier log block stays, in Python's step."""
    sequence = (self._words[WALKED] + 1) & in_flight._SEQUENCE_MASK
    self._words[WALKED] = position | sequence
    return int(sequence << in_flight.SEQUENCE_SHIFT)


_marks: WeakKeyDictionary[OrderedLog, int] = WeakKeyDictionary()


def _has_room_by_an_own_mark(self: OrderedLog, words: memoryview, end: int) -> bool:
    """Each process keeps the low-water mark that it has found, as if that only rose, in Python's
    step."""
    if end - _marks.get(self, 0) > self._size:
        _marks[self] = self._low_water_mark(words)
    return end - _marks.get(self, 0) <= self._size


def _keep_nothing_copied(_: OrderedLog, words: memoryview, at: int, walked: int) -> bool:
    """The log is given up whenever a dead worker had copied something and not walked it."""
    return bool(walked >= words[at + LOG_CURSOR])


_real_append = OrderedLog.append
_has_started = property(lambda worker: worker.has_started)
MUTANTS: dict[str, AbstractContextManager[object]] = {
    "early-flip": patch.object(OrderedLog, "append", _append_with_early_flip),
    "early-serving": patch.object(SupervisedWorker, "is_serving", _has_started),
    "keep-nothing": patch.object(OrderedLog, "_keep_copied", _keep_nothing_copied),
    "own-mark": patch.object(OrderedLog, "_has_room", _has_room_by_an_own_mark),
    "stale-progress": patch.object(InFlight, "begin_block", _begin_block_without_clearing),
}
"""By name, as the command line has them; each is made while its context manager is entered."""
