"""Several calls at the same time, each on blocking sockets of its own.

A socket call lets the other threads run, so publishers in threads are as concurrent as the bus is
fast. An error in any thread is raised where the threads are joined, and every join is bounded.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

JOIN_SECONDS_MAX = 120.0


class Task:
    """One call in a thread of its own, started at once."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def ends_within(self, timeout_s: float) -> bool:
        """Whether the call is over; raises what it raised."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def join(self, timeout_s: float = JOIN_SECONDS_MAX) -> None:
        """Wait for the end of the call; raises what it raised."""
        assert self.ends_within(timeout_s), f"still at it after {timeout_s} s"


def run_together(*calls: Callable[[], object]) -> None:
    """Make all calls at the same time and wait for them."""
    for task in [Task(call) for call in calls]:
        task.join()


@contextmanager
def meanwhile(*calls: Callable[[threading.Event], object]) -> Iterator[None]:
    """Make these calls during the block; each gets an event which asks it to come to its end."""
    stop = threading.Event()
    tasks = [Task(lambda call=call: call(stop)) for call in calls]  # type: ignore[misc]
    try:
        yield
    finally:
        stop.set()
    for task in tasks:
        task.join()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll a condition that no barrier reports."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.002)
