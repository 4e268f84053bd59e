"""Statistics of samples, and the lines and options that figures are read from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.bench import BenchmarkFailed
from sbus.bench.figures import (
    change_percent,
    format_cpus,
    outer_thirds,
    parse_cpus,
    parse_report,
    percentile,
)


@pytest.mark.parametrize(("samples", "percent"), [([], 50), ([1], 0), ([1], 100.1)])
def test_a_percentile_without_meaning_is_an_error(samples: list[int], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(samples, percent)


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 1_000))
def test_a_percentile_is_the_least_sample_with_enough_at_or_below_it(
    samples: list[int], tenths: int
) -> None:
    found = percentile(samples, tenths / 10)
    enough = [s for s in samples if sum(x <= s for x in samples) * 1000 >= tenths * len(samples)]
    assert found == min(enough)


def test_changes_are_in_percent_of_the_base() -> None:
    assert change_percent(3.0, 2.0) == pytest.approx(50.0)
    assert change_percent(1.5, 2.0) == pytest.approx(-25.0)


def test_outer_thirds_leave_the_middle_out() -> None:
    assert outer_thirds([1, 2, 3, 4, 5, 6]) == ([1, 2], [5, 6])


def test_outer_thirds_of_few_samples_are_not_empty() -> None:
    assert outer_thirds([1]) == ([1], [1])
    assert outer_thirds([1, 2]) == ([1], [2])
    with pytest.raises(ValueError, match="no samples"):
        outer_thirds([])


def test_a_report_is_a_word_and_numbers_with_names() -> None:
    line = "done messages=20 wall_ns=123456789012\n"
    assert parse_report(line) == ("done", {"messages": 20, "wall_ns": 123456789012})
    assert parse_report("ready\n") == ("ready", {})


@pytest.mark.parametrize(
    "line", ["", "\n", "done messages\n", "done messages=-1\n", "done =1\n", "a=1\n", "done a=²\n"]
)
def test_any_other_line_is_no_report(line: str) -> None:
    with pytest.raises(BenchmarkFailed, match="no report"):
        parse_report(line)


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", {0}), ("0,2", {0, 2}), ("1-3", {1, 2, 3}), ("0, 2-3,2", {0, 2, 3})]
)
def test_cpus_are_numbers_and_ranges(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1,", "1-"])
def test_what_is_no_list_of_cpus_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|no range"):
        parse_cpus(text)


@given(st.frozensets(st.integers(0, 200), min_size=1))
def test_cpus_are_read_back_as_they_were_written(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus
