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
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.simulation.fibers import Fiber, is_product
from tests.simulation.world import simulate

SEED = 6
"""Without a fault, its workers enter the lock in every way that those of any seed do."""
_RUNS_PER_COLLECTION = 20
"""What is left of a run has descriptors open."""
_SHARED = str(Path("sbus", "shared"))


class Death(NamedTuple):
    """Of the worker that enters the lock first by the function `hold`."""

    hold: str
    instruction: int


_FIRST = Death("Sequencer._place", 100)
"""It comes before the death of a successor."""


class Watch:
    """Of all entries into the lock. Dooms workers to these deaths, one after the other."""

    def __init__(self, *deaths: Death) -> None:
        self._deaths = list(deaths)
        self.seen: Counter[str] = Counter()
        """By the functions that enter the lock, since the last death began."""

    def on_enter(self, fiber: Fiber) -> None:
        frame = sys._getframe(1)
        while not is_product(frame) or _SHARED in frame.f_code.co_filename:
            assert frame.f_back is not None
            frame = frame.f_back
        hold = frame.f_code.co_qualname
        if fiber.is_doomed:
            fiber.let_be()
        elif self._deaths and hold == self._deaths[0].hold:
            fiber.doom(self._deaths.pop(0).instruction)
            self.seen.clear()
        self.seen[hold] += 1


def find_holds() -> Iterator[tuple[str, tuple[Death, ...]]]:
    """The functions that enter the lock, and after which death they do."""
    known: set[str] = set()
    for earlier in ((), (_FIRST,)):
        watch = Watch(*earlier)
        simulate(SEED, "python", watch.on_enter)
        for hold in [hold for hold in watch.seen if hold not in known]:
            known.add(hold)
            yield hold, earlier


def run_all(first: int, step: int) -> Counter[str]:
    """Die before every `step`-th instruction of every hold; returns how many deaths each had.

    Raises AssertionError, with a note that names the death.
    """
    found: Counter[str] = Counter()
    for hold, earlier in find_holds():
        for instruction in count(first, step):
            deaths = (*earlier, Death(hold, instruction))
            try:
                outcome = simulate(SEED, "python", Watch(*deaths).on_enter)
            except BaseException as error:
                error.add_note(str(deaths))
                raise
            if outcome.counts["deaths"] < len(deaths):
                break
            found[hold] += 1
            if found[hold] % _RUNS_PER_COLLECTION == 0:
                gc.collect()
    return found
