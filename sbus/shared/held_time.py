"""Held time: how long a user's clients have held publishers back in the most recent window.

The budget is for any *window* of time, over all connections and workers. So it is kept in shared
words: when the present hold began, and the time held in each of the last 61 *slices*; 60 slices are
a window. The sum may include up to one slice before the window:

    spent(now) >= time held in (now - window, now]
    spent(now) <= time held in (now - window - slice, now]

All times are nanoseconds of the monotonic clock, which all processes share. Changing the words
needs the lock; reading them does not.
"""

from collections.abc import Iterable

SLICES = 60
_SINCE = 0  # when the present hold began; 0: no publisher is held
_LATEST = 1  # the number of the slice that was last written, counted from time 0
_FIRST = 2
_RING = SLICES + 1
HELD_WORDS = _FIRST + _RING


class HeldTime:
    """One user's held time, in `HELD_WORDS` shared `words`."""

    __slots__ = ("_slice_ns", "_words")

    def __init__(self, words: memoryview, window_ns: int) -> None:
        self._words = words
        self._slice_ns = window_ns // SLICES

    # -- under the lock ------------------------------------------------------------------------
    def begin(self, now_ns: int) -> None:
        """A publisher is held from now on; others may be held already."""
        if not self._words[_SINCE]:
            self._words[_SINCE] = now_ns

    def end(self, now_ns: int) -> None:
        """No publisher is held any more."""
        since = self._words[_SINCE]
        if since:
            self._words[_SINCE] = 0  # first, so that a concurrent reader does not count it twice
            self._charge(since, now_ns)

    def _charge(self, start_ns: int, end_ns: int) -> None:
        words, slice_ns = self._words, self._slice_ns
        latest = max(words[_LATEST], end_ns // slice_ns)
        for number in range(max(words[_LATEST] + 1, latest - SLICES), latest + 1):
            words[_FIRST + number % _RING] = 0
        words[_LATEST] = latest
        for number in range(max(start_ns // slice_ns, latest - SLICES), latest + 1):
            begin, end = number * slice_ns, (number + 1) * slice_ns
            held = max(0, min(end, end_ns) - max(begin, start_ns))
            words[_FIRST + number % _RING] += held

    def restore(self, spans: Iterable[tuple[int, int]]) -> None:
        """Go on with what another bus had, as `spans` has it."""
        for start_ns, end_ns in spans:
            self._charge(start_ns, end_ns)

    # -- without the lock ----------------------------------------------------------------------
    def end_of_slice_ns(self, now_ns: int) -> int:
        """Until then, `spent_ns` does not decrease."""
        return (now_ns // self._slice_ns + 1) * self._slice_ns

    def spans(self, now_ns: int) -> list[tuple[int, int]]:
        """Times that add up to what was held in the most recent window, in their order."""
        words, slice_ns = self._words, self._slice_ns
        latest = words[_LATEST]
        numbers = range(max(0, latest - SLICES), latest + 1)
        held = ((number * slice_ns, words[_FIRST + number % _RING]) for number in numbers)
        spans = [(start_ns, start_ns + spent_ns) for start_ns, spent_ns in held if spent_ns]
        since = words[_SINCE]
        return [*spans, (since, now_ns)] if since else spans

    def spent_ns(self, now_ns: int) -> int:
        """Time held in the most recent window."""
        words, slice_ns = self._words, self._slice_ns
        oldest = now_ns // slice_ns - SLICES
        latest = words[_LATEST]
        spent = 0
        for number in range(max(oldest, latest - SLICES, 0), latest + 1):
            spent += words[_FIRST + number % _RING]
        since = words[_SINCE]
        return spent + (now_ns - max(since, oldest * slice_ns) if since else 0)
