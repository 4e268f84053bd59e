"""Time for the workers of one process."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import compiled_step


class HostClock:
    """Stands still, unless it is advanced."""

    def __init__(self) -> None:
        self.now_ns = time.monotonic_ns()
        self.interrupted_ns = 0
        self.advance(0)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass, and a little more, because a worker's times are rounded."""
        self.now_ns += int(seconds * 1e9) + 1_000
        compiled_step.set_clock(self.now_ns)

    def cpu_seconds(self) -> float:
        return (self.now_ns - self.interrupted_ns) / 1e9

    def interrupt(self, seconds: float) -> None:
        """Let so many seconds pass in which this process has no processor."""
        before_ns = self.now_ns
        self.advance(seconds)
        self.interrupted_ns += self.now_ns - before_ns


@pytest.fixture
def real_time() -> None:
    """Lets time pass in a test of what takes time."""


@pytest.fixture(autouse=True)
def host_clock(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HostClock | None]:
    """Time stands still: a turn or a batch that took too long would end early."""
    if "real_time" in request.fixturenames:
        yield None
        return
    clock = HostClock()
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock.now_ns)
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: clock.now_ns / 1e9)
    monkeypatch.setattr(time, "thread_time", clock.cpu_seconds)
    yield clock
    compiled_step.set_clock(0)


@pytest.fixture
def advance(host_clock: HostClock) -> Callable[[float], None]:
    """Lets so many seconds pass. Otherwise time stands still."""
    return host_clock.advance


@pytest.fixture
def interrupt(host_clock: HostClock) -> Callable[[float], None]:
    """Lets so many seconds pass in which the host runs other programs."""
    return host_clock.interrupt
