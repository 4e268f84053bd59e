"""Statistics against plain numbers: buckets, sharing, taking a place over, and reaping."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.codes import DROP_REASONS, PACKET_CODES
from sbus.shared import worker_statistics as counter
from sbus.shared.worker_statistics import (
    WorkerStatistics,
    counters_of,
    named_counters,
    reap,
    statistics_words,
)

WORKERS = 3


def shared_words() -> memoryview:
    return memoryview(bytearray(8 * statistics_words(WORKERS))).cast("Q")


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


def test_a_count_is_invisible_until_it_is_shared_and_changes_no_other_place() -> None:
    words = shared_words()
    statistics = WorkerStatistics(counters_of(words, 1))
    statistics.counts[counter.MESSAGES_IN] = 7
    assert not any(words)
    statistics.share()
    assert counters_of(words, 1)[counter.MESSAGES_IN] == 7
    assert not any(counters_of(words, 0))
    assert not any(counters_of(words, 2))


def test_a_new_worker_goes_on_from_the_shared_counters_of_its_predecessor() -> None:
    words = shared_words()
    before = WorkerStatistics(counters_of(words, 0))
    before.counts[counter.ACCEPTED] = 100
    before.counts[counter.ACCEPTED_BYTES] = 1000
    before.counts[counter.UNDELIVERED] = 3
    before.counts[counter.IN_BACKLOG] = 20
    before.counts[counter.IN_BACKLOG_BYTES] = 200
    before.share()
    reap(words, 0)
    after = WorkerStatistics(counters_of(words, 0))
    assert after.counts[counter.ACCEPTED] == 100
    assert after.counts[counter.IN_BACKLOG] == after.counts[counter.IN_BACKLOG_BYTES] == 0
    assert after.counts[counter.UNDELIVERED] == 23, "what stood in backlogs went with the worker"
    assert after.counts[counter.UNDELIVERED_BYTES] == 200


@given(st.lists(st.integers(0, 2**40), min_size=counter.WORDS, max_size=counter.WORDS))
def test_another_bus_goes_on_with_all_counters_but_what_is_in_backlogs(counts: list[int]) -> None:
    words = shared_words()
    counters_of(words, 1)[:] = memoryview(array("Q", counts))
    statistics = WorkerStatistics()
    statistics.counts[counter.MESSAGES_IN] = 5
    statistics.add(named_counters(counters_of(words, 1)))
    counts[counter.MESSAGES_IN] += 5
    counts[counter.IN_BACKLOG] = counts[counter.IN_BACKLOG_BYTES] = 0
    assert statistics.counts.tolist() == counts


def test_a_counter_of_a_later_version_is_ignored() -> None:
    statistics = WorkerStatistics()
    statistics.add({"invented_later": 7, "stalls": 1})
    assert sum(statistics.counts) == statistics.counts[counter.STALLS] == 1
