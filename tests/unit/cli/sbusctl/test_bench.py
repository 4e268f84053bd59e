"""`sbusctl bench`: pace, percentiles, the broker's CPU time, and the table."""

import msgspec
import pytest

from sbus.cli.sbusctl import bench_load, bench_verb, bench_works
from sbus.cli.sbusctl.bench_load import LoadPlan
from sbus.cli.sbusctl.bench_works import Times, WorkResult, cpu_us_per_delivery
from sbus.protocol.admin_results import StatsResult
from tests.support import admin_samples


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bench_load, "time", clock)
    return clock


def plan(**changes: object) -> LoadPlan:
    fields: dict[str, object] = {
        "seconds": 2.0,
        "size_bytes": 64,
        "rate": None,
        "messages_max": None,
    }
    return LoadPlan(**(fields | changes))  # type: ignore[arg-type]


def test_a_rate_spaces_messages_evenly(clock: Clock) -> None:
    times = [clock.seconds - 100 for _ in plan(rate=4.0).numbers()]
    assert times == pytest.approx([0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75])


def test_a_message_that_took_long_does_not_delay_the_next(clock: Clock) -> None:
    times = []
    for number in plan(rate=4.0).numbers():
        times.append(clock.seconds - 100)
        clock.seconds += 0.6 if number == 0 else 0
    assert times[:5] == pytest.approx([0, 0.6, 0.6, 0.75, 1.0])


def test_without_a_rate_the_number_or_the_time_ends_it(clock: Clock) -> None:
    assert list(plan(messages_max=3).numbers()) == [0, 1, 2]
    for _ in plan().numbers():
        clock.seconds += 0.5
    assert clock.seconds == pytest.approx(102.0)


@pytest.mark.parametrize(("size_bytes", "window"), [(0, 1_024), (64, 1_024), (409_600, 10)])
def test_the_window_is_a_fraction_of_a_backlog(size_bytes: int, window: int) -> None:
    one = plan(size_bytes=size_bytes)
    assert one.window == window
    assert 1 <= one.step <= max(1, window // 2)


def test_percentiles_are_nearest_ranks() -> None:
    times = bench_works.times_of([number / 1e6 for number in range(200, 0, -1)])
    assert times is not None
    assert (times.p50_us, times.p99_us, times.max_us) == pytest.approx((100, 198, 200))
    assert bench_works.times_of([]) is None


def stats(cpu_seconds: float, delivered: int, pid: int = 7) -> StatsResult:
    return admin_samples.stats(
        workers=[admin_samples.worker(cpu_seconds=cpu_seconds, pid=pid)],
        traffic=admin_samples.traffic(delivered=delivered),
    )


def test_cpu_time_is_shared_by_all_deliveries_meanwhile() -> None:
    assert cpu_us_per_delivery(stats(1.0, 500), stats(1.5, 100_500)) == pytest.approx(5.0)


@pytest.mark.parametrize("after", [stats(2.0, 500), stats(2.0, 900, pid=8), stats(0.0, 900, pid=0)])
def test_cpu_time_is_unknown_without_deliveries_or_after_a_death(after: StatsResult) -> None:
    assert cpu_us_per_delivery(stats(1.0, 500), after) is None


def result(work: str, **changes: object) -> WorkResult:
    one = WorkResult(
        work=work,
        publishers=1_000,
        subscribers=1_000,
        subscriptions=1,
        size_bytes=64,
        seconds=2.0,
        published=2_468_000,
        delivered=2_468_000_000,
        lost=123_456,
        round_trip=Times(p50_us=123.4, p99_us=1_234.5, max_us=123_456.7),
        broker_cpu_us=123.4,
    )
    return msgspec.structs.replace(one, **changes)


def test_the_table_fits_a_terminal_and_tells_every_loss() -> None:
    lines = bench_verb.result_lines([result(work) for work in bench_verb.WORKS], 80)
    assert all(line.cell_len <= 80 for line in lines)
    header, *rows = (line.plain.split() for line in lines)
    assert (header[0], header[-1]) == ("WORK", "CPU/MSG")
    assert {row[header.index("LOST")] for row in rows} == {"123k"}
    assert {row[header.index("CPU/MSG")] for row in rows} == {"123µs"}


def test_what_is_unknown_is_a_dash() -> None:
    unknown = result("throughput", round_trip=None, broker_cpu_us=None)
    (_, row) = bench_verb.result_lines([unknown], 80)
    assert row.plain.split()[-4:] == ["-", "-", "-", "-"]


def test_the_verb_has_every_work() -> None:
    assert tuple(bench_works.WORKS) == bench_verb.WORKS
