"""Operation times: how long each process did one thing, at the longest.

An *operation* is work during which its process serves nobody else. Every process keeps the longest
time of each kind in shared words that it alone writes, by the clock and by CPU time. A new worker
goes on with those of its place. Reading needs no lock.

A busy host makes the time longer, and CPU time shows what the bus itself needed. To read the CPU
clock is a system call, so it is read only if the time is longer than all CPU times so far. What it
showed when the operation began is not known, but what it showed at the last *mark* is. The tick or
callback that the operation is, or is a part of, began at most a millisecond later:

    CPU time of an operation <= min(its time, CPU time since the mark)

A caller that has read the CPU clock before an operation can give what it showed then.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sbus.limits import OPERATION_CPU_SECONDS_MAX, OPERATION_SECONDS_MAX

KINDS: Final = tuple(OPERATION_CPU_SECONDS_MAX)
MARK_SECONDS: Final = 0.001
"""Between two marks, while there are operations."""
_WORDS = 2 * len(KINDS)
"""The longest time of each kind, and behind it the longest CPU time, in nanoseconds."""

Report = Callable[[str, str, float, float], None]
"""Reports an operation over its bound: its kind, what it was, its time and its CPU time."""


class LongestOperation(NamedTuple):
    """Of one kind in one process; the longest by CPU time may have been another one."""

    kind: str
    seconds: float
    cpu_seconds: float


def operation_words(processes: int) -> int:
    """Shared words of the times of all processes."""
    return _WORDS * processes


class OperationTimes:
    """Of the process in this place among the shared `words` of all."""

    __slots__ = ("_cpu_at_mark", "_report", "_words", "seconds_ignored")

    def __init__(self, words: memoryview, place: int, report: Report) -> None:
        self._words = words[place * _WORDS : (place + 1) * _WORDS]
        self._report = report
        self.seconds_ignored = dict.fromkeys(KINDS, 0.0)
        """A shorter operation of this kind is neither the longest nor over a bound, and need not be
        recorded."""
        self.mark()

    def mark(self) -> None:
        """A tick or a callback begins. To be called if the last mark is `MARK_SECONDS` old."""
        self._cpu_at_mark = time.thread_time()

    def own_time(self, seconds: float) -> float:
        """The time of work that has just ended, without an interruption by the host, if it took
        longer than the mark can be old."""
        if seconds <= MARK_SECONDS:
            return seconds
        return min(seconds, time.thread_time() - self._cpu_at_mark)

    def record(
        self, kind: str, seconds: float, what: str = "", cpu_at_begin: float | None = None
    ) -> None:
        """An operation of this kind took so long."""
        if seconds > self.seconds_ignored[kind]:
            cpu_before = self._cpu_at_mark if cpu_at_begin is None else cpu_at_begin
            self._look_at(kind, seconds, what, min(seconds, time.thread_time() - cpu_before))

    def _look_at(self, kind: str, seconds: float, what: str, cpu_seconds: float) -> None:
        words, at = self._words, 2 * KINDS.index(kind)
        words[at] = max(words[at], int(seconds * 1e9))
        words[at + 1] = max(words[at + 1], int(cpu_seconds * 1e9))
        bound = OPERATION_CPU_SECONDS_MAX[kind]
        self.seconds_ignored[kind] = min(words[at + 1] / 1e9, bound)
        if cpu_seconds > bound or seconds > OPERATION_SECONDS_MAX:
            self._report(kind, what, seconds, cpu_seconds)


def longest_operations(words: memoryview, place: int) -> Iterator[LongestOperation]:
    """The longest operations of the process in this place, of each kind that it had."""
    own = words[place * _WORDS : (place + 1) * _WORDS]
    for number, kind in enumerate(KINDS):
        time_ns, cpu_ns = own[2 * number : 2 * number + 2]
        if time_ns:
            yield LongestOperation(kind, time_ns / 1e9, cpu_ns / 1e9)
