"""A worker dies at each instruction of each kind of critical section, and so does its successor:
`python -m tests.simulation --every-death 1 --jobs 2`.

A run without any fault shows which functions of workers enter the lock. Then the same run is
repeated with one death each time: of the worker that enters the lock there, before its first
instruction, before its second one, and so on, until it enters the lock again or its tick ends. One
such death shows which functions of a successor enter the lock, and it is repeated with a second
death there. All promises of the simulation have to hold.
"""

import gc
import sys
from collections import Counter
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from tests.simulation.fibers import Fiber, is_product
from tests.simulation.seeds import simulate

SEED = 176
"""Without a fault, its workers enter the lock in every way that those of any seed do."""
_RUNS_PER_COLLECTION = 20
"""What is left of a run has descriptors open."""
_RUNS_PER_PROCESS = 500
"""Some of what is left is never collected."""
_SHARED = str(Path("sbus", "shared"))


class Death(NamedTuple):
    """Of the worker that enters the lock first by the function `hold`."""

    hold: str
    instruction: int


_FIRST = Death("Sequencer._place", 100)
"""It comes before the death of a successor."""


class Survived(Exception):
    """A worker has not died in its critical section, and all goes on as without a fault."""


class Watch:
    """Of all entries into the lock. Dooms workers to these deaths, one after the other."""

    def __init__(self, *deaths: Death) -> None:
        self.left = list(deaths)
        """Those to which no worker has come yet."""
        self._doomed: Fiber | None = None
        self.has_survived = False
        self.seen: Counter[str] = Counter()
        """By the functions that enter the lock, since the last death began."""

    def on_enter(self, fiber: Fiber) -> None:
        frame = sys._getframe(1)
        while not is_product(frame) or _SHARED in frame.f_code.co_filename:
            assert frame.f_back is not None
            frame = frame.f_back
        hold = frame.f_code.co_qualname
        if frame.f_locals.get("receipt"):
            hold += "(receipt)"
        if fiber is self._doomed:
            self.has_survived = True
            raise Survived
        if self.left and hold == self.left[0].hold:
            self._doomed = fiber
            fiber.doom(self.left.pop(0).instruction)
            self.seen.clear()
        self.seen[hold] += 1


def _find_holds() -> list[tuple[str, tuple[Death, ...]]]:
    """The functions that enter the lock, and after which death they do."""
    holds: dict[str, tuple[Death, ...]] = {}
    for earlier in ((), (_FIRST,)):
        watch = Watch(*earlier)
        simulate(SEED, "python", watch.on_enter)
        assert not watch.left, f"no worker enters the lock in {watch.left}"
        for hold in watch.seen:
            holds.setdefault(hold, earlier)
    return list(holds.items())


def run_all(first: int, step: int, jobs: int) -> Counter[str]:
    """Die before every `step`-th instruction of every hold, in so many processes at a time; returns
    how many deaths each had.

    Raises AssertionError, with a note that names the death.
    """
    found: Counter[str] = Counter()
    with get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for hold, earlier in pool.apply(_find_holds):
            firsts = count(first, step * _RUNS_PER_PROCESS)
            counts = [_RUNS_PER_PROCESS]
            while min(counts) == _RUNS_PER_PROCESS:
                pieces = [(hold, earlier, next(firsts), step) for _ in range(jobs)]
                counts = pool.starmap(_run_piece, pieces, chunksize=1)
                found[hold] += sum(counts)
            assert found[hold], f"no worker has died in {hold}"
    return found


def _run_piece(hold: str, earlier: tuple[Death, ...], first: int, step: int) -> int:
    """Die in one hold, from this instruction on; returns how many deaths there were."""
    for number in range(_RUNS_PER_PROCESS):
        deaths = (*earlier, Death(hold, first + number * step))
        watch = Watch(*deaths)
        try:
            outcome = simulate(SEED, "python", watch.on_enter)
        except BaseException as error:
            if watch.has_survived:
                return number
            error.add_note(str(deaths))
            raise
        assert not watch.left, f"no worker enters the lock in {watch.left}"
        if outcome.counts["deaths"] < len(deaths):
            return number
        if number % _RUNS_PER_COLLECTION == 0:
            gc.collect()
    return _RUNS_PER_PROCESS
