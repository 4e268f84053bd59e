"""Numbers for people: short, close to the number, one word each."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.cli.terminal.units import (
    by_name,
    count,
    counted,
    duration,
    enumerated,
    mean,
    microseconds,
    percent,
    quantile,
    size,
)
from sbus.protocol.admin_results import Latency
from tests.support.admin_samples import LATENCY, NO_LATENCY

THOUSANDS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
BYTES = {"B": 1, **{f"{letter}iB": 1024**i for i, letter in enumerate("KMGTPE", start=1)}}


SHOWN: dict[Callable[[float], str], dict[float, str]] = {
    count: {
        0: "0",
        0.004: "0",
        0.4: "0.4",
        9.996: "10",
        99.97: "100",
        1234.5: "1234",
        9999: "9999",
        9999.7: "10k",
        999_499: "999k",
        999_500: "1M",
        4_718_592: "4.72M",
        2**64: "18.4E",
    },
    size: {
        0: "0B",
        1023: "1023B",
        1024: "1KiB",
        4_718_592: "4.5MiB",
        1024**2 - 1: "1MiB",
        102_349: "100KiB",
    },
    duration: {
        0: "0s",
        9.96: "10s",
        59.4: "59s",
        59.6: "1m00s",
        3_599.6: "1h00m",
        7_500: "2h05m",
        273_600: "3d04h",
        86_400 * 12 + 7_200: "12d",
    },
    microseconds: {0: "0µs", 50: "50µs", 2_500: "2.5ms", 1_000_000: "1s"},
}


@pytest.mark.parametrize("show", SHOWN)
def test_numbers_are_short(show: Callable[[float], str]) -> None:
    assert {number: show(number) for number in SHOWN[show]} == SHOWN[show]


@given(st.integers(0, 2**64) | st.floats(0, 1e18))
def test_every_number_is_one_short_word_close_to_it(number: float) -> None:
    for show, units, width in ((count, THOUSANDS, 5), (size, BYTES, 7)):
        shown = show(number)
        digits = shown.rstrip("kKMGTPEiB")
        value = float(digits) * units[shown.removeprefix(digits)]
        assert len(shown) <= width
        assert math.isclose(value, number, rel_tol=0.0051, abs_tol=0.0051)


def test_quantiles_are_the_bounds_of_their_buckets() -> None:
    """Of the sample's 1,000 deliveries 600 took at most 50 us, 980 at most 100, 995 at most 1,000;
    one took longer than every bound."""
    found = [quantile(LATENCY, part) for part in (0.5, 0.6, 0.601, 0.98, 0.99, 0.999, 1)]
    assert found == ["<=50µs", "<=50µs", "<=100µs", "<=100µs", "<=1ms", "<=2.5ms", ">1s"]
    assert mean(LATENCY) == "2.35ms"
    assert quantile(NO_LATENCY, 0.5) == mean(NO_LATENCY) == "-"


@given(
    st.lists(st.integers(1, 10**7), min_size=1, max_size=8, unique=True).map(sorted),
    st.data(),
)
def test_enough_deliveries_are_within_a_quantile(bounds: list[int], data: st.DataObject) -> None:
    number = len(bounds) + 1
    counts = data.draw(st.lists(st.integers(0, 50), min_size=number, max_size=number))
    part = data.draw(st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
    took = [
        bound
        for bound, times in zip([*bounds, 2 * bounds[-1]], counts, strict=True)
        for _ in range(times)
    ]
    shown = quantile(Latency(bounds, counts, sum(took)), part)
    if not took:
        assert shown == "-"
        return
    value = took[math.ceil(part * len(took)) - 1]
    bound = f">{microseconds(bounds[-1])}" if value > bounds[-1] else f"<={microseconds(value)}"
    assert shown == bound


def test_parts_of_nothing_are_unknown() -> None:
    assert percent(1, 8) == "12.5%"
    assert percent(0, 0) == "-"


def test_words() -> None:
    assert by_name({"b": 2, "a": 2, "c": 12_345, "none": 0}) == "c 12.3k, a 2, b 2"
    assert by_name({}) == by_name({"hard": 0}) == "none"
    assert [counted(n, "client") for n in (0, 1, 2)] == ["0 clients", "1 client", "2 clients"]
    assert enumerated([1]) == "1"
    assert enumerated([1, 2, 3]) == "1, 2 and 3"
