"""The summary of `sbusctl ping`, which has the form of ping(8)'s."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.cli.sbusctl.round_trips import RoundTrips


def summary(trips: RoundTrips) -> list[str]:
    return trips.describe("/bus", 1.5).splitlines()


def test_without_pings_nothing_is_lost() -> None:
    assert summary(RoundTrips()) == [
        "--- /bus ping statistics ---",
        "0 packets transmitted, 0 received, 0% packet loss, time 1500ms",
    ]


def test_pings_that_did_not_come_back_are_lost() -> None:
    trips = RoundTrips()
    trips.sent = 8
    trips.add(0.002)
    trips.add(0.004)
    assert summary(trips)[1:] == [
        "8 packets transmitted, 2 received, 75% packet loss, time 1500ms",
        "rtt min/avg/max/mdev = 2.000/3.000/4.000/1.000 ms",
    ]


@given(st.lists(st.floats(1e-6, 10), min_size=1))
def test_times_agree_with_the_statistics_module(seconds: list[float]) -> None:
    trips = RoundTrips()
    trips.sent = len(seconds)
    for each in seconds:
        trips.add(each)
    shown = summary(trips)[2].removeprefix("rtt min/avg/max/mdev = ").removesuffix(" ms")
    expected = (min(seconds), statistics.fmean(seconds), max(seconds), statistics.pstdev(seconds))
    for text, value in zip(shown.split("/"), expected, strict=True):
        assert float(text) == pytest.approx(value * 1000, abs=0.002, rel=1e-6)
