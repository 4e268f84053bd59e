"""When a soak has passed."""

import pytest

from sbus.bench.soak import MIB, Interval, verdict

GOOD = {"sent": 10, "received": 15, "lost": 5, "notices": 1, "violations": 0}


def interval(mib: int, silent: int = 0, deaf: int = 0) -> Interval:
    return Interval(
        at_seconds=10.0,
        length_seconds=10.0,
        sent=10,
        received=15,
        lost_in_all=5,
        idle_publishers=silent,
        idle_subscribers=deaf,
        process_bytes={1: mib * MIB, 2: mib * MIB},
    )


def test_a_good_run_passes() -> None:
    passed, notes = verdict([interval(10)] * 6, GOOD)
    assert passed
    assert "10 sent, 15 received, 5 lost" in notes[0]


@pytest.mark.parametrize("idle", [interval(10, silent=1), interval(10, deaf=1)])
def test_an_idle_client_fails_it(idle: Interval) -> None:
    passed, notes = verdict([interval(10), idle, interval(10)], GOOD)
    assert not passed
    assert any(note.startswith("wedged") and "YES" in note for note in notes)


def test_a_run_that_never_drained_fails_it() -> None:
    passed, notes = verdict([interval(10)], {})
    assert not passed
    assert notes[0].startswith("wedged     YES")


def test_one_violation_fails_it() -> None:
    assert not verdict([interval(10)], GOOD | {"violations": 1})[0]


@pytest.mark.parametrize(("last_mib", "passes"), [(10, True), (9, True), (12, False)])
def test_memory_may_not_grow_from_first_to_last_third(last_mib: int, passes: bool) -> None:
    intervals = [interval(10), interval(10), interval(50), interval(50), interval(last_mib)]
    intervals += [interval(last_mib)]
    assert verdict(intervals, GOOD)[0] is passes


def test_rates_are_per_second() -> None:
    assert interval(10).cells() == ("10", "1", "2", "5", "20.0", "10.0")
