"""Complaints: a bounded number of lines, none of which hides how many were left out."""

import os
import sys

import pytest

from sbus.broker import complaints as complaints_module
from sbus.broker.complaints import Complaints, log


class Log:
    """Complaints whose lines and clock are the test's."""

    def __init__(self, interval_seconds: float = 10.0) -> None:
        self.lines: list[str] = []
        self.now = 1000.0
        self.complaints = Complaints(interval_seconds, self.lines.append, lambda: self.now)


def test_the_same_about_the_same_user_is_written_once_per_interval() -> None:
    log = Log()
    for _ in range(5):
        log.complaints.complain("no-nul", 7, "bad packet")
    log.now += 9.99
    log.complaints.complain("no-nul", 7, "bad packet")
    assert log.lines == ["bad packet"]
    log.now += 0.01
    log.complaints.complain("no-nul", 7, "bad again")
    assert log.lines == ["bad packet", "bad again (and 5 more like it)"]
    log.now += 10
    log.complaints.complain("no-nul", 7, "third")
    assert log.lines[2:] == ["third"]


def test_users_and_codes_do_not_silence_each_other() -> None:
    log = Log()
    for code, uid in (("a", 1), ("a", 2), ("b", 1), ("a", 1)):
        log.complaints.complain(code, uid, f"{code}{uid}")
    assert log.lines == ["a1", "a2", "b1"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complaints_module, "_KINDS_MAX", 10)
    log = Log()
    for uid in range(1000):
        log.complaints.complain("a", uid, str(uid))
        assert len(log.complaints._last) <= 10
    assert len(log.lines) == 1000


def test_a_line_says_whose_it_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    log("something happened")
    assert capfd.readouterr().err == "sbusd: something happened\n"


def test_a_log_that_nobody_reads_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as nobody_reads:
        monkeypatch.setattr(sys, "stderr", nobody_reads)
        log("something happened")
