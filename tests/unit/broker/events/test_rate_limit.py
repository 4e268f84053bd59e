"""Complaints: a bounded number of lines, none of which hides how many were left out."""

import pytest

from sbus.broker.events import rate_limit as complaints_module
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.protocol.events import AcceptingPaused
from tests.support.events import logging_to


class Log:
    """Complaints whose lines and clock are the test's."""

    def __init__(self, interval_seconds: float = 10.0) -> None:
        self.lines: list[str] = []
        self.now = 1000.0
        events = logging_to(self.lines)
        self.rate_limiter = LogRateLimiter(interval_seconds, events, lambda: self.now)

    def complain(self, code: str, uid: int, text: str) -> None:
        self.rate_limiter.complain(code, uid, lambda: AcceptingPaused(why=text))

    def texts(self) -> list[str]:
        """What was logged, without what is said of every pause."""
        return [line.partition(": ")[2] for line in self.lines]


def test_the_same_about_the_same_user_is_written_once_per_interval() -> None:
    log = Log()
    for _ in range(5):
        log.complain("no-nul", 7, "bad packet")
    log.now += 9.99
    log.complain("no-nul", 7, "bad packet")
    assert log.texts() == ["bad packet"]
    log.now += 0.01
    log.complain("no-nul", 7, "bad again")
    assert log.texts() == ["bad packet", "bad again (and 5 more like it)"]
    log.now += 10
    log.complain("no-nul", 7, "third")
    assert log.texts()[2:] == ["third"]


def test_users_and_codes_do_not_silence_each_other() -> None:
    log = Log()
    for code, uid in (("a", 1), ("a", 2), ("b", 1), ("a", 1)):
        log.complain(code, uid, f"{code}{uid}")
    assert log.texts() == ["a1", "a2", "b1"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complaints_module, "_KINDS_MAX", 10)
    log = Log()
    for uid in range(1000):
        log.complain("a", uid, str(uid))
        assert len(log.rate_limiter._last) <= 10
    assert len(log.texts()) == 1000
