"""The simulation of a seed, which is the same each time."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest.mock import patch

import trio
import trio.abc

from sbus.broker.front import succession
from sbus.broker.worker import ordinary_step, subscriptions, table_reader
from sbus.shared import compaction, in_flight
from tests.simulation import clock as clocks
from tests.simulation.fibers import Fiber
from tests.simulation.kept_log import KeptLogWorld
from tests.simulation.world import Outcome, World

_SEEDS_PER_KEPT_LOG = 15
"""One of so many seeds stands for a simulation of a kept log, with each step by turns."""


class _Clock(trio.abc.Clock):
    """Shows trio the simulated time."""

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return time.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0


@contextlib.contextmanager
def _deterministic(seed: int) -> Iterator[clocks.SimulatedClock]:
    """What the order of events must not depend on."""
    trio_run = cast("Any", trio._core._run)
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio_run._r.seed(seed)
    clock = clocks.SimulatedClock()
    clocks.show(clock)
    gc.disable()
    try:
        yield clock
    finally:
        clocks.show(None)


@contextlib.contextmanager
def _small_pieces(records: int) -> Iterator[None]:
    """The tables of simulations are small, and so are their numbers of clients. So what is done
    with them piece by piece is done in pieces of so many."""
    with (
        patch.object(table_reader, "_RECORDS_PER_READ", records),
        patch.object(subscriptions, "_RECORDS_PER_PIECE", records),
        patch.object(compaction, "STEP_RECORDS", records),
        patch.object(succession, "_CLIENTS_PER_CALLBACK", records),
    ):
        yield


def _few_block_numbers() -> contextlib.AbstractContextManager[object]:
    """The numbers of log blocks repeat from the second on; those of the compiled step do not."""
    return patch.object(in_flight, "_SEQUENCE_MASK", 1)


def simulate(seed: int, step: str, on_enter: Callable[[Fiber], None] | None = None) -> Outcome:
    """Run the simulation of this seed with this ordinary step, "python" or "compiled"; with
    `on_enter`, without its faults (see `World`).

    Raises AssertionError where a promise is broken.
    """
    is_exact = step == "python"
    with (
        _deterministic(seed) as clock,
        patch.object(ordinary_step, "STEP", step),
        _few_block_numbers() if is_exact else contextlib.nullcontext(),
    ):
        kind = KeptLogWorld if on_enter is None and not seed % _SEEDS_PER_KEPT_LOG else World
        world = kind(seed, clock, on_enter, is_exact=is_exact)
        try:
            with _small_pieces(world.plan.records_per_piece):
                return trio.run(world.run, clock=_Clock())
        finally:
            world.close()
