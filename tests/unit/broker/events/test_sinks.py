"""The log: lines or entries, never waited for."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sbus.broker.events import sinks as event_log
from sbus.broker.events.sinks import WriteEvent, open_log, write_to_journal
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
from tests.support.threads import Task

TIMEOUT_S = 60.0
PAUSED = AcceptingPaused(why="too many open files")
READY = BusReady(address="/run/sbus.socket", workers=2, version="1.2", step="python")
REFUSED = ConnectionRefused(
    who=Process(uid=1000, gid=100, pid=77, program="cat"), code="not-admitted", why="no\nway"
)


def log_to(fd: int, monkeypatch: pytest.MonkeyPatch) -> WriteEvent:
    """The log that a bus has whose standard error is this file."""
    monkeypatch.setattr(event_log, "ERRORS", fd)
    return open_log("stderr")


def test_a_log_that_nobody_reads_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    log_to(write_end, monkeypatch)(PAUSED, "something happened")
    os.close(write_end)


def pipe() -> tuple[int, int]:
    return os.pipe()


def stream() -> tuple[int, int]:
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


def own_pipe() -> tuple[int, int]:
    """As `reopen_errors` makes it."""
    return os.pipe2(os.O_NONBLOCK)


@pytest.mark.parametrize("make", [pipe, stream, own_pipe])
def test_events_without_room_are_counted_in_the_next_one(
    make: Callable[[], tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = make()
    log = log_to(write_end, monkeypatch)
    for number in range(10_000):
        log(PAUSED, f"line {number} of many")
    log(READY, "not for standard error")
    lines = os.read(read_end, 1 << 20).decode().splitlines()
    assert lines == [f"sbusd: line {number} of many" for number in range(len(lines))]
    lost = 10_000 - len(lines)
    log(PAUSED, "there is room again")
    told = f"sbusd: there is room again (lost before it, because the log was full: {lost})\n"
    assert os.read(read_end, 200).decode() == told
    log(PAUSED, "another")
    assert os.read(read_end, 100) == b"sbusd: another\n"
    os.close(read_end)
    os.close(write_end)


def test_another_process_that_takes_the_last_room_holds_up_no_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does so when this process has found out that there is room."""
    read_end, write_end = os.pipe()
    log = log_to(write_end, monkeypatch)
    make_poll = select.poll

    class PollThenFill:
        def __init__(self) -> None:
            self._poll = make_poll()
            self.register = self._poll.register

        def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
            ready = self._poll.poll(timeout_ms)
            subprocess.run([sys.executable, "-c", FILL, str(write_end)], pass_fds=[write_end])
            return ready

    monkeypatch.setattr(select, "poll", PollThenFill)
    Task(lambda: log(PAUSED, "there was room")).join(TIMEOUT_S)
    monkeypatch.undo()
    assert os.get_blocking(write_end)
    assert set(os.read(read_end, 1 << 20)) == {0}
    log(PAUSED, "later")
    line = b"sbusd: later (lost before it, because the log was full: 1)\n"
    assert os.read(read_end, 1 << 20) == line
    os.close(read_end)
    os.close(write_end)


FILL = """
import os, sys
own = os.open(f"/proc/self/fd/{sys.argv[1]}", os.O_WRONLY | os.O_NONBLOCK)
try:
    while True:
        os.write(own, bytes(4096))
except BlockingIOError:
    pass
"""
"""A program that fills a pipe, by an open file of its own."""


def test_a_forked_process_counts_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    log = log_to(write_end, monkeypatch)
    with suppress(BlockingIOError):
        while True:
            os.write(write_end, bytes(4096))
    log(PAUSED, "lost")
    os.read(read_end, 1 << 20)
    child = os.fork()
    if child == 0:
        log(PAUSED, "of the child")
        os._exit(0)
    os.waitpid(child, 0)
    log(PAUSED, "of the parent")
    lines = os.read(read_end, 1 << 20).splitlines()
    assert lines == [
        b"sbusd: of the child",
        b"sbusd: of the parent (lost before it, because the log was full: 1)",
    ]
    os.close(read_end)
    os.close(write_end)


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status = os.fstat(2)
    there = JournalSocket(tmp_path)
    journal = Journal(there.path)
    monkeypatch.setattr(event_log, "Journal", lambda: journal)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    open_log("auto")(PAUSED, "to the journal")
    assert [entry["MESSAGE"] for entry in there.entries()] == [b"to the journal"]
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino + 1}")
    open_log("auto")(PAUSED, "not there")
    open_log("stderr")(PAUSED, "nor here")
    assert capfd.readouterr().err == "sbusd: not there\nsbusd: nor here\n"
    assert there.entries() == []
    journal.close()
    there.close()


def test_a_journal_that_is_asked_for_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "SOCKET_PATH", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="log=journal"):
        open_log("journal")
