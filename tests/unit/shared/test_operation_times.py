"""Operation times with clocks that stand still unless a test moves them."""

import time

import pytest

from sbus.limits import OPERATION_CPU_SECONDS_MAX, OPERATION_SECONDS_MAX
from sbus.shared.operation_times import (
    KINDS,
    MARK_SECONDS,
    LongestOperation,
    OperationTimes,
    longest_operations,
    operation_words,
)

PROCESSES = 3


class Scene:
    """Two clocks, the shared words, and what was reported."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.cpu = 50.0
        self.cpu_clock_reads = 0
        self.words = memoryview(bytearray(8 * operation_words(PROCESSES))).cast("Q")
        self.reports: list[tuple[str, str, float, float]] = []

    def thread_time(self) -> float:
        self.cpu_clock_reads += 1
        return self.cpu

    def process(self, place: int) -> OperationTimes:
        return OperationTimes(self.words, place, lambda *report: self.reports.append(report))

    def run(self, seconds: float, cpu_seconds: float | None = None) -> None:
        """Time passes, in which this process has a processor for `cpu_seconds`."""
        self.now += seconds
        self.cpu += seconds if cpu_seconds is None else cpu_seconds

    def do(
        self, times: OperationTimes, kind: str, seconds: float, cpu_seconds: float | None = None
    ) -> None:
        """An operation of this kind, which is a part of no other."""
        times.mark()
        self.run(seconds, cpu_seconds)
        times.record(kind, seconds)

    def longest(self, place: int) -> list[LongestOperation]:
        """In whole microseconds."""
        return [
            LongestOperation(it.kind, round(it.seconds, 6), round(it.cpu_seconds, 6))
            for it in longest_operations(self.words, place)
        ]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    monkeypatch.setattr(time, "thread_time", made.thread_time)
    return made


def test_the_longest_of_each_kind_is_kept(scene: Scene) -> None:
    times = scene.process(1)
    for seconds in (0.002, 0.003, 0.001):
        scene.do(times, "tick", seconds)
    scene.do(times, "walk", 0.0025)
    assert scene.longest(1) == [
        LongestOperation("tick", 0.003, 0.003),
        LongestOperation("walk", 0.0025, 0.0025),
    ]


def test_cpu_time_since_the_mark_does_not_count_if_that_at_the_begin_is_given(scene: Scene) -> None:
    times = scene.process(1)
    scene.run(0.04)
    cpu_at_begin = scene.cpu
    scene.run(0.03, cpu_seconds=0.001)
    times.record("backlog", 0.03, cpu_at_begin=cpu_at_begin)
    assert scene.longest(1) == [LongestOperation("backlog", 0.03, 0.001)]
    assert not scene.reports


def test_the_end_of_a_part_does_not_shorten_the_whole(scene: Scene) -> None:
    times = scene.process(0)
    times.mark()
    for seconds in (0.008, 0.009):
        scene.run(seconds)
        times.record("match", seconds)
    scene.run(0.001)
    times.record("tick", 0.018)
    assert scene.longest(0) == [
        LongestOperation("tick", 0.018, 0.018),
        LongestOperation("match", 0.009, 0.009),
    ]


def test_cpu_time_since_the_mark_counts(scene: Scene) -> None:
    times = scene.process(0)
    scene.do(times, "tick", 10.0)
    times.mark()
    scene.run(MARK_SECONDS)
    scene.run(5.0, cpu_seconds=0.002)
    times.record("callback", 5.0)
    (callback,) = [it for it in scene.longest(0) if it.kind == "callback"]
    assert callback == LongestOperation("callback", 5.0, 0.002 + MARK_SECONDS)


def test_the_cpu_clock_is_not_read_for_what_is_not_the_longest(scene: Scene) -> None:
    times = scene.process(0)
    scene.do(times, "tick", 0.000_1)
    scene.cpu_clock_reads = 0
    for _ in range(1_000):
        times.record("tick", 0.000_09)
    assert scene.cpu_clock_reads == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_over_its_bound_is_reported(scene: Scene, kind: str) -> None:
    times = scene.process(2)
    bound = OPERATION_CPU_SECONDS_MAX[kind]
    scene.do(times, kind, bound * 0.99)
    assert scene.reports == []
    for part in (3, 2, 1.01):
        scene.do(times, kind, bound * part)
    assert [report[0] for report in scene.reports] == [kind] * 3
    assert [report[3] for report in scene.reports] == pytest.approx(
        [bound * part for part in (3, 2, 1.01)]
    )


def test_an_operation_that_sleeps_in_the_kernel_is_reported(scene: Scene) -> None:
    times = scene.process(0)
    scene.do(times, "command", OPERATION_SECONDS_MAX * 0.99, cpu_seconds=0.0)
    assert scene.reports == []
    times.mark()
    scene.run(20.0, cpu_seconds=0.001)
    times.record("command", 20.0, "AdoptClient")
    ((kind, what, seconds, cpu_seconds),) = scene.reports
    assert (kind, what, seconds) == ("command", "AdoptClient", 20.0)
    assert cpu_seconds == pytest.approx(0.001)
