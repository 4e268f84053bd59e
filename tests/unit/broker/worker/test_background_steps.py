"""Background steps: users in turns, the changes of one user in their order."""

import time
from collections.abc import Iterator

import pytest

from sbus.broker.worker.background_steps import BackgroundSteps
from sbus.limits import UNITS_PER_SECOND


class Log:
    """Changes that write down their steps."""

    def __init__(self) -> None:
        self.steps = BackgroundSteps()
        self.made: list[str] = []

    def change(self, name: str, *results: bool) -> Iterator[bool]:
        for result in results:
            self.made.append(name)
            yield result

    def make(self, count: int) -> list[str]:
        """Make so many steps; returns which were made."""
        self.made.clear()
        for _ in range(count):
            assert self.steps.make_one() is not None
        return self.made


def test_users_have_turns_and_the_changes_of_one_user_are_made_in_their_order() -> None:
    log = Log()
    for name in ("a", "b"):
        log.steps.add(1, log.change(name, True, True))
    log.steps.add(2, log.change("c", True, True, True, True))
    assert log.make(5) == ["a", "c", "a", "c"], "the end of a change is a step of its own"
    assert log.make(5) == ["c", "b", "c", "b"]
    assert not log.make(1)
    assert log.steps.make_one() is None
    assert not log.steps._changes


def test_a_change_that_waits_for_room_holds_back_no_other() -> None:
    log = Log()
    log.steps.add(1, log.change("stuck", False, True))
    log.steps.add(1, log.change("other", True))
    assert log.make(3) == ["stuck", "other"]
    assert log.steps.make_one() is None
    log.steps.retry()
    assert log.make(2) == ["stuck"]
    assert not any([log.steps._changes, log.steps._stuck])


def test_a_change_may_be_followed_by_one_that_it_adds() -> None:
    log = Log()

    def begin() -> Iterator[bool]:
        yield True
        log.steps.add(1, log.change("next", True))

    log.steps.add(1, begin())
    assert log.make(4) == ["next"]
    assert log.steps.make_one() is None


def test_a_step_costs_its_user_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    now = iter([10.0, 10.5])
    monkeypatch.setattr(time, "thread_time", lambda: next(now))
    log.steps.add(7, log.change("a", True))
    assert log.steps.make_one() == (7, UNITS_PER_SECOND // 2)
