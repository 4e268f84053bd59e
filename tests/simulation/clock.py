"""The simulated clock, in the place of the real one.

`install` is called before anything of sbus is imported, because some modules keep the functions of
`time`. Until a simulation begins, and in programs that never simulate, they show the real time.
"""

import time
from collections.abc import Callable

from tests.support import compiled_step

_BEGINS_NS = 1_000_000_000_000
_READING_NS = 100
"""Each look at the clock takes so long, so that nothing takes no time at all."""
_SECONDS = ("monotonic", "perf_counter", "thread_time", "time")


class SimulatedClock:
    """Of all processes of a bus; time passes when it is looked at, and by `advance`."""

    def __init__(self) -> None:
        self.now_ns = _BEGINS_NS

    def read_ns(self) -> int:
        self.now_ns += _READING_NS
        return self.now_ns

    def advance(self, nanoseconds: int) -> None:
        self.now_ns += nanoseconds

    def show_compiled_step(self) -> None:
        """Let the compiled step see the present time; it stands still while that works."""
        compiled_step.set_clock(self.now_ns)


_shown: SimulatedClock | None = None


def show(clock: SimulatedClock | None) -> None:
    """Show this clock from now on; None: the real time."""
    global _shown
    _shown = clock
    if clock is None:
        compiled_step.set_clock(0)


def install() -> None:
    """Have the functions of `time` show the simulated clock while there is one."""
    for name in _SECONDS:
        setattr(time, name, _in_seconds(getattr(time, name)))
        setattr(time, f"{name}_ns", _in_nanoseconds(getattr(time, f"{name}_ns")))


def _in_seconds(real: Callable[[], float]) -> Callable[[], float]:
    return lambda: real() if _shown is None else _shown.read_ns() / 1e9


def _in_nanoseconds(real: Callable[[], int]) -> Callable[[], int]:
    return lambda: real() if _shown is None else _shown.read_ns()
