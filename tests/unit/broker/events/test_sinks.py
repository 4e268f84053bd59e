"""The log: lines or entries, never waited for."""

import os
import sys
from pathlib import Path

import pytest

from sbus.broker.events import sinks as event_log
from sbus.broker.events.sinks import open_log, write_to_journal, write_to_stderr
from sbus.errors import ConfigurationError
from sbus.protocol.event import Process
from sbus.protocol.events import (
    KINDS,
    AcceptingPaused,
    BusReady,
    ConnectionRefused,
    WorkerDied,
)
from sbus.unix.journal import Journal
from tests.support.journal import JournalSocket

PAUSED = AcceptingPaused(why="too many open files")
READY = BusReady(address="/run/sbus.socket", workers=2, version="1.2", step="python")
REFUSED = ConnectionRefused(
    who=Process(uid=1000, gid=100, pid=77, program="cat"), code="not-admitted", why="no\nway"
)


def test_a_line_begins_with_the_program(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    write_to_stderr(PAUSED, "something happened")
    assert capfd.readouterr().err == "sbusd: something happened\n"


def test_informational_events_do_not_go_to_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    write_to_stderr(READY, READY.text())
    assert capfd.readouterr().err == ""


def test_a_log_that_nobody_reads_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as nobody_reads:
        monkeypatch.setattr(sys, "stderr", nobody_reads)
        write_to_stderr(PAUSED, "something happened")


def test_a_log_that_is_full_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as full, os.fdopen(read_end, "rb") as reader:
        monkeypatch.setattr(sys, "stderr", full)
        for number in range(10_000):
            write_to_stderr(PAUSED, f"line {number} of many")
        text = os.read(reader.fileno(), 1 << 20)
        assert text.startswith(b"sbusd: line 0 of many\n")
        assert text.endswith(b" of many\n")
        write_to_stderr(PAUSED, "there is room again")
        assert reader.readline() == b"sbusd: there is room again\n"


def test_a_journal_entry_has_the_fields_of_the_event(tmp_path: Path) -> None:
    there = JournalSocket(tmp_path)
    journal = Journal(there.path)
    write_to_journal(journal, REFUSED, "refused it")
    (entry,) = there.entries()
    assert entry == {
        "MESSAGE": b"refused it",
        "PRIORITY": b"4",
        "MESSAGE_ID": entry["MESSAGE_ID"],
        "SYSLOG_IDENTIFIER": b"sbusd",
        "SBUS_EVENT": b"connection-refused",
        "SBUS_UID": b"1000",
        "SBUS_GID": b"100",
        "SBUS_PID": b"77",
        "SBUS_PROGRAM": b"cat",
        "SBUS_CODE": b"not-admitted",
        "SBUS_WHY": b"no\nway",
    }
    journal.close()
    there.close()


def test_message_ids_never_change() -> None:
    """Administrators filter by them; 128 bits in hexadecimal."""
    died = WorkerDied(worker=1, worker_pid=2, how="signal 9")
    assert event_log.message_id(died) == "98fb87f1437b500ba03ee3cd0c2398bd"
    ids = {event_log.message_id(event) for event in (PAUSED, READY, REFUSED, died)}
    assert len(ids) == 4
    assert len(KINDS) > 20


def test_the_journal_is_chosen_where_errors_go_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.fstat(2)
    there = JournalSocket(tmp_path)
    journal = Journal(there.path)
    monkeypatch.setattr(event_log, "Journal", lambda: journal)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    open_log("auto")(PAUSED, "to the journal")
    assert [entry["MESSAGE"] for entry in there.entries()] == [b"to the journal"]
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + 1}")
    assert open_log("auto") is write_to_stderr
    assert open_log("stderr") is write_to_stderr
    journal.close()
    there.close()


def test_a_journal_that_is_asked_for_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "SOCKET_PATH", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="log=journal"):
        open_log("journal")
