"""Held time against a list of intervals: what a window sees is never less than what was held in it,
and at most what one more slice adds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.shared.held_time import HELD_WORDS, SLICES, HeldTime

SLICE_NS = 1_000
WINDOW_NS = SLICES * SLICE_NS
HOUR_NS = 3_600_000_000_000

STEPS_NS = st.one_of(
    st.integers(0, 3),
    st.integers(0, 2 * SLICE_NS),
    st.sampled_from([SLICE_NS - 1, SLICE_NS, WINDOW_NS, WINDOW_NS + SLICE_NS, 7 * HOUR_NS]),
    st.integers(0, 2 * WINDOW_NS),
)


def held_time() -> HeldTime:
    return HeldTime(memoryview(bytearray(8 * HELD_WORDS)).cast("Q"), WINDOW_NS)


def overlap_ns(intervals: list[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """The time within (start, end] that the intervals cover; they do not overlap each other."""
    return sum(max(0, min(end_ns, end) - max(start_ns, start)) for start, end in intervals)


@settings(max_examples=5 * settings().max_examples)
@given(
    st.sampled_from([1, SLICE_NS - 1, 17 * HOUR_NS]),
    st.lists(st.tuples(STEPS_NS, st.sampled_from(["begin", "end", "look"])), max_size=60),
)
def test_the_time_in_a_window_is_overestimated_by_at_most_a_slice(
    now_ns: int, script: list[tuple[int, str]]
) -> None:
    """Also when a hold begins that is there already, or none is there to end."""
    time = held_time()
    held: list[tuple[int, int]] = []
    since: int | None = None
    for step_ns, what in script:
        now_ns += step_ns
        if what == "begin":
            time.begin(now_ns)
            since = now_ns if since is None else since
        elif what == "end":
            time.end(now_ns)
            if since is not None:
                held.append((since, now_ns))
            since = None
        until_now = held if since is None else [*held, (since, now_ns)]
        spent_ns = time.spent_ns(now_ns)
        assert spent_ns >= overlap_ns(until_now, now_ns - WINDOW_NS, now_ns)
        assert spent_ns <= overlap_ns(until_now, now_ns - WINDOW_NS - SLICE_NS, now_ns)
        assert time.spent_ns(now_ns) == spent_ns, "to look changes nothing"
        restored = held_time()
        restored.restore(time.spans(now_ns))
        assert restored.spent_ns(now_ns) == spent_ns, "another bus goes on with the same"


@settings(max_examples=2 * settings().max_examples)
@given(
    st.integers(1, 20),
    st.lists(st.tuples(STEPS_NS, st.sampled_from(["try", "end"])), max_size=60),
)
def test_holding_only_while_time_is_left_keeps_the_budget_in_every_window(
    slices: int, script: list[tuple[int, str]]
) -> None:
    """The budget as it is used: a hold begins while some is left, and ends when none is."""
    budget_ns = slices * SLICE_NS
    time = held_time()
    held: list[tuple[int, int]] = []
    since: int | None = None
    now_ns = HOUR_NS
    for step_ns, what in script:
        then_ns = now_ns + step_ns
        if since is not None:
            left_ns = budget_ns - time.spent_ns(now_ns)
            if what == "end" or left_ns <= step_ns:
                now_ns += min(step_ns, max(0, left_ns))
                time.end(now_ns)
                held.append((since, now_ns))
                since = None
        now_ns = then_ns
        if since is None and what == "try" and time.spent_ns(now_ns) < budget_ns:
            time.begin(now_ns)
            since = now_ns
    for _, end_ns in held:
        assert overlap_ns(held, end_ns - WINDOW_NS, end_ns) <= budget_ns


def test_nothing_is_remembered_once_a_window_and_a_slice_have_passed() -> None:
    time = held_time()
    time.begin(5 * WINDOW_NS)
    time.end(6 * WINDOW_NS)
    assert time.spent_ns(6 * WINDOW_NS) == WINDOW_NS
    assert time.spent_ns(7 * WINDOW_NS + SLICE_NS) == 0


def test_a_hold_longer_than_any_window_counts_as_one_window() -> None:
    time = held_time()
    time.begin(HOUR_NS)
    for end_ns in (2 * HOUR_NS, 9 * HOUR_NS):
        assert WINDOW_NS <= time.spent_ns(end_ns) <= WINDOW_NS + SLICE_NS
    time.end(9 * HOUR_NS)
    assert WINDOW_NS <= time.spent_ns(9 * HOUR_NS) <= WINDOW_NS + SLICE_NS


@pytest.mark.parametrize("earlier_ns", [1, SLICE_NS, WINDOW_NS, 10 * WINDOW_NS])
def test_a_process_that_read_the_clock_a_little_earlier_forgets_nothing(earlier_ns: int) -> None:
    """A worker may write after another one although it read the clock earlier."""
    time = held_time()
    late_ns = 100 * WINDOW_NS
    time.begin(late_ns - 10)
    time.end(late_ns)
    before = time.spent_ns(late_ns)
    time.begin(late_ns - earlier_ns - 10)
    time.end(late_ns - earlier_ns)
    assert time.spent_ns(late_ns) >= before
