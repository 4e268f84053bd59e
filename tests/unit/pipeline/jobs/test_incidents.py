"""Which windows of a series of counts are incidents."""

from collections.abc import Callable

import numpy as np
import pytest

from sbus.pipeline.jobs.incidents import SCORE_MIN, Counts, incidents

WINDOWS = 60
PLACES = (0, 7, 30)
"""Where an outage begins."""

PUBLISHERS: dict[str, Callable[[np.random.Generator], Counts]] = {
    "one message a window": lambda rng: np.ones(WINDOWS, np.int64),
    "a hundred a window": lambda rng: np.full(WINDOWS, 100),
    "about ten a window": lambda rng: rng.integers(9, 12, WINDOWS),
    "half as many or half as many again": lambda rng: rng.integers(50, 151, WINDOWS),
    "at random": lambda rng: rng.poisson(30, WINDOWS),
    "at random, in bursts": lambda rng: rng.poisson(200 * rng.gamma(4, 0.25, WINDOWS)),
}


@pytest.mark.parametrize("publisher", PUBLISHERS)
@pytest.mark.parametrize("length", [3, 7, 8, 12, 20, 29, 30])
def test_an_outage_is_one_incident(publisher: str, length: int) -> None:
    rng = np.random.default_rng([length, len(publisher)])
    for begin in PLACES:
        counts = PUBLISHERS[publisher](rng)
        counts[begin : begin + length] = 0
        found = [each for each in incidents(counts, SCORE_MIN) if each.score < 0]
        assert [(each.first, each.end, each.messages) for each in found] == [
            (begin, begin + length, 0)
        ]
        assert found[0].usual == np.median(counts[counts > 0])


@pytest.mark.parametrize("publisher", list(PUBLISHERS)[:5])
def test_nothing_is_unusual_of_a_publisher_that_goes_on(publisher: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        assert incidents(PUBLISHERS[publisher](rng), SCORE_MIN) == []


def test_two_outages_and_a_burst_are_three_incidents() -> None:
    counts = np.full(WINDOWS, 100)
    counts[5:15] = counts[40:46] = 0
    counts[50:53] = (900, 700, 800)
    found = incidents(counts, SCORE_MIN)
    assert [(each.first, each.end, each.messages) for each in found] == [
        *((5, 15, 0), (40, 46, 0)),
        (50, 53, 2_400),
    ]
    assert [each.score > 0 for each in found] == [False, False, True]


def test_a_drop_that_is_no_silence_is_an_incident() -> None:
    counts = np.full(WINDOWS, 100)
    counts[20:30] = 20
    assert [each[:3] for each in incidents(counts, SCORE_MIN)] == [(20, 30, 200)]


def test_silence_is_usual_for_what_is_mostly_silent() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        counts = (rng.random(WINDOWS) < 0.3).astype(np.int64) * 3
        assert incidents(counts, SCORE_MIN) == []
    counts = np.zeros(WINDOWS, np.int64)
    assert incidents(counts, SCORE_MIN) == []
    counts[3] = 50
    assert [(each.first, each.end) for each in incidents(counts, SCORE_MIN)] == [(3, 4)]


def test_the_score_is_as_documented() -> None:
    counts = np.array([10, 12, 8, 10, 11, 9, 10, 100, 0, 0, 0, 0])
    rest = counts[:8]
    spread = max(1.4826 * np.median(np.abs(rest - 10)), 10**0.5)
    burst, silence = incidents(counts, SCORE_MIN)
    assert burst[:4] == (7, 8, 100, 10.0)
    assert burst.spread == pytest.approx(spread)
    assert burst.score == pytest.approx(90 / spread)
    assert silence[:3] == (8, 12, 0)
    assert silence.score == pytest.approx(-2 * 10 / spread)
