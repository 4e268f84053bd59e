"""Incidents in a series of counts: windows in a row with more or fewer than usual.

Without Spark. What is usual is learned from the series itself, but not from its longest run of
empty windows, which may be the outage that is looked for; unless that is most of the series.

    usual  = median
    spread = max(1.4826 MAD or, if that is 0, 1.2533 mean excess or shortfall, sqrt(usual), 1)
    score  = (count - usual) / spread

The median absolute deviation (MAD) is not changed by a few extreme windows. Times 1.4826 it
estimates the standard deviation of a normal distribution. If more than half of the windows have the
same count, as for rare messages, it is 0; then it is the mean of how far all windows are above the
median (for those above it) or below (for those below), times 1.2533: bursts do not hide outages.
Counts of random events deviate by their square root, so the spread is at least that.

A count can rise without bound, so each window of a burst has to stand out by itself. It cannot fall
below 0, so fewer than usual have to stand out together: their score is the sum of the windows'
scores divided by the square root of their number, as for independent windows. An empty window says
the more, the fewer others are empty, of a noisy publisher, too: its score is at least that of a
normal deviate as rare as an empty window.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

Counts = np.ndarray[Any, np.dtype[np.int64]]

SCORE_MIN = 5.0
"""One in three million normal deviates is as high."""
NORMAL_PER_MAD = 1.4826
NORMAL_PER_MEAN_DEVIATION = 1.2533
SILENCE_SHARE_MAX = 2 / 3
"""Of a series; a longer silence is what is usual."""


class Incident(NamedTuple):
    """The windows from `first` to `end` (exclusive)."""

    first: int
    end: int
    messages: int
    usual: float
    spread: float
    score: float
    """Negative: fewer than usual."""


def incidents(counts: Counts, score_min: float) -> list[Incident]:
    """The incidents whose score is at least `score_min` or at most its negative, in order."""
    known = _without_longest_silence(counts)
    usual = float(np.median(known))
    above, below = (_spread(known, usual, side) for side in (1, -1))
    excess, shortfall = (counts - usual) / above, (usual - counts) / below
    if usual:
        empty_share = (np.count_nonzero(known == 0) + 0.5) / (len(known) + 1)
        rarity = math.sqrt(-2 * math.log(empty_share))
        shortfall[counts == 0] = max(usual / below, rarity)
    found = [
        *(
            (first, end, above, float(excess[first:end].max()))
            for first, end in _runs(excess >= score_min)
        ),
        *(
            (first, end, below, -float(shortfall[first:end].sum()) / math.sqrt(end - first))
            for first, end in _runs((shortfall >= score_min / 2) | (counts == 0))
        ),
    ]
    return [
        Incident(first, end, int(counts[first:end].sum()), usual, spread, score)
        for first, end, spread, score in sorted(found)
        if abs(score) >= score_min
    ]


def _spread(known: Counts, usual: float, side: Literal[1, -1]) -> float:
    """Of the counts above what is usual (1), or below (-1)."""
    mad = NORMAL_PER_MAD * np.median(np.abs(known - usual))
    strays = NORMAL_PER_MEAN_DEVIATION * np.maximum(side * (known - usual), 0).mean()
    return max(float(mad or strays), math.sqrt(usual), 1.0)


def _without_longest_silence(counts: Counts) -> Counts:
    first, end = max(_runs(counts == 0), key=lambda run: run[1] - run[0], default=(0, 0))
    if end - first > SILENCE_SHARE_MAX * len(counts):
        return counts
    return np.delete(counts, slice(first, end))


def _runs(flags: "np.ndarray[Any, np.dtype[np.bool_]]") -> Iterator[tuple[int, int]]:
    """Where the flags are set: the first and the end of each run."""
    changes = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return zip(changes[::2], changes[1::2], strict=True)
