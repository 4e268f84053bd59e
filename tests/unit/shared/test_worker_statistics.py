"""Statistics against plain numbers."""

from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.codes import DROP_REASONS, PACKET_CODES
from sbus.shared import worker_statistics as counter
from sbus.shared.worker_statistics import WorkerStatistics


@given(st.lists(st.tuples(st.integers(0, 40_000_000), st.integers(0, 1000))))
def test_each_latency_is_in_the_first_bucket_that_holds_it(took: list[tuple[int, int]]) -> None:
    statistics = WorkerStatistics()
    expected = [0] * (len(counter.LATENCY_BOUNDS_US) + 1)
    for latency_us, deliveries in took:
        statistics.record_latency(latency_us, deliveries)
        bucket = sum(latency_us > bound for bound in counter.LATENCY_BOUNDS_US)
        expected[bucket] += deliveries
    assert statistics.counts[counter.LATENCY :].tolist() == expected
    assert statistics.counts[counter.LATENCY_SUM_US] == sum(us * count for us, count in took)


def test_every_code_and_reason_has_a_counter_of_its_own() -> None:
    statistics = WorkerStatistics()
    for times, code in enumerate(PACKET_CODES, 1):
        for _ in range(times):
            statistics.record_refusal(code)
    for times, reason in enumerate(DROP_REASONS, 1):
        for _ in range(times):
            statistics.record_drop(reason, 10)
    counts = statistics.counts.tolist()
    assert counts[counter.REFUSED : counter.LATENCY] == list(range(1, len(PACKET_CODES) + 1))
    assert counts[counter.DROPPED : counter.REFUSED] == list(range(1, len(DROP_REASONS) + 1))
    assert counts[counter.DROPPED_BYTES] == 10 * sum(range(1, len(DROP_REASONS) + 1))
    everything_else = sum(counts) - sum(counts[counter.DROPPED : counter.LATENCY])
    assert everything_else == counts[counter.DROPPED_BYTES]


def test_a_counter_of_a_later_version_is_ignored() -> None:
    statistics = WorkerStatistics()
    statistics.add({"invented_later": 7, "stalls": 1})
    assert sum(statistics.counts) == statistics.counts[counter.STALLS] == 1
