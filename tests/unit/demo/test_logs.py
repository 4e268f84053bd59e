"""Which log the demo takes, and what keys its lines get."""

import os
from itertools import islice
from pathlib import Path

import pytest

from sbus.demo import logs
from sbus.demo.logs import Log, find_log, line_key, messages, tail


@pytest.mark.parametrize(
    ("name", "line", "key"),
    [
        (b"dpkg", b"2025-01-02 03:04:05 status installed a:all 1", b"log/dpkg/status/installed"),
        (b"dpkg", b"2025-01-02 03:04:05 install a:all <none> 1", b"log/dpkg/install"),
        (b"dpkg", b"something else", b"log/dpkg/line"),
        (b"syslog", b"Jan  2 03:04:05 web3 sshd[77]: hello", b"log/syslog/sshd"),
        (b"syslog", b"2025-01-02T03:04:05+01:00 web3 a/b: c", b"log/syslog/a_b"),
        (b"syslog", b"Jan  2 03:04:05 web3 !: x", b"log/syslog/_"),
        (b"other", b"\x00\xff/!/*", b"log/other/line"),
    ],
)
def test_the_key_says_what_kind_of_line(name: bytes, line: bytes, key: bytes) -> None:
    assert line_key(name, line) == key


def test_the_newest_log_with_lines_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOG_DIRECTORY", tmp_path)
    for name, written_at, text in [
        ("a.log", 1, "old\n"),
        ("b.log", 2, "x\n\ny\n"),
        ("c.log", 3, ""),
    ]:
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (written_at, written_at))
    assert find_log() == Log(str(tmp_path / "b.log"), b"b", [b"x", b"y"])


def test_without_any_log_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_DIRECTORY", tmp_path)
    monkeypatch.setattr(logs, "PACKAGE_LISTS", (tmp_path / "status",))
    assert find_log() is None
    (tmp_path / "status").write_text("Package: a\n")
    assert find_log() == Log(str(tmp_path / "status"), b"status", [b"Package: a"])


def test_only_whole_lines_of_the_end_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "TAIL_BYTES", 7)
    (tmp_path / "x.log").write_text("first\nsecond\nlast\n")
    assert tail(tmp_path / "x.log") == [b"last"]


def test_lines_go_round() -> None:
    rounds = messages(Log("x", b"x", [b"%d" % number for number in range(15)]))
    lines = [line for batch in islice(rounds, 4) for _, line in batch]
    assert lines == [b"%d" % number for number in [*range(15), *range(15)]]
