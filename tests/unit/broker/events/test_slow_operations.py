"""Operations that took too long are logged, at a limited rate, with the process and the kind."""

import time
from collections.abc import Iterator

import pytest

from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.events.slow_operations import time_operations
from sbus.limits import OPERATION_CPU_SECONDS_MAX
from sbus.shared.operation_times import longest_operations
from sbus.shared.shared_memory import SharedMemory
from tests.support.events import logging_to
from tests.unit.shared.memories import open_memory

WORKERS = 2
LONG_SECONDS = 2 * max(OPERATION_CPU_SECONDS_MAX.values())


class Clock:
    """Of both times; every look at it takes time while `is_slow`."""

    now = 1_000.0
    is_slow = False

    def read(self) -> float:
        self.now += LONG_SECONDS if self.is_slow else 0.0
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made.read)
    monkeypatch.setattr(time, "thread_time", lambda: made.now)
    return made


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(WORKERS) as opened:
        opened.lock.open()
        yield opened


def test_each_kind_is_logged_once_in_an_interval(clock: Clock, memory: SharedMemory) -> None:
    lines: list[str] = []
    limiter = LogRateLimiter(10.0, logging_to(lines), clock=lambda: clock.now)
    times = time_operations(memory, 1, limiter)

    def do(kind: str, what: str = "") -> None:
        times.mark()
        clock.now += LONG_SECONDS
        times.record(kind, LONG_SECONDS, what)

    for _ in range(5):
        do("tick")
    do("command", "AdoptClient")
    clock.now += 10
    do("tick")
    took = f"took {LONG_SECONDS} s, CPU time {LONG_SECONDS} s"
    assert lines == [
        f"slow operation of worker 1: tick {took}",
        f"slow operation of worker 1: command AdoptClient {took}",
        f"slow operation of worker 1: tick {took} (and 4 more like it)",
    ]


def test_a_long_critical_section_is_found(clock: Clock, memory: SharedMemory) -> None:
    lines: list[str] = []
    time_operations(memory, None, LogRateLimiter(10.0, logging_to(lines), clock=lambda: clock.now))
    with memory.lock.timed:
        pass
    assert lines == []
    with memory.lock.timed:
        clock.is_slow = True
    clock.is_slow = False
    assert [line.partition(" took ")[0] for line in lines] == ["slow operation of front: hold"]
    (hold,) = longest_operations(memory.operations, WORKERS)
    assert hold.kind == "hold"
    assert hold.cpu_seconds == pytest.approx(LONG_SECONDS)


def test_waiting_for_the_lock_is_no_critical_section(clock: Clock, memory: SharedMemory) -> None:
    """The clock is read when the lock has been taken."""
    lines: list[str] = []
    time_operations(memory, 0, LogRateLimiter(10.0, logging_to(lines), clock=lambda: clock.now))
    clock.is_slow = True
    with memory.lock.timed:
        clock.is_slow = False
    assert lines == []
