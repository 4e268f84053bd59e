"""`sbusctl monitor` and `events` with a real bus: output for people, and for programs."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sbus.cli.terminal.user_names import user_name
from tests.support.bus import Bus, running_bus, stop
from tests.support.processes import signal_asleep, stopped
from tests.support.raw_client import RawClient
from tests.support.sbusctl import TIMEOUT_S, end_of, publish_until_seen, read_line, started

PROGRAM = Path("/proc/self/comm").read_text().removesuffix("\n")
HEADING = b"TIME         USER     PROGRAM[PID]          BYTES  TO KEY"


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


@pytest.fixture
def client(bus: Bus) -> Iterator[RawClient]:
    with bus.connect() as connected:
        yield connected


def test_a_message_is_a_line(bus: Bus, client: RawClient) -> None:
    client.sub(b"a/*")
    client.sync()
    with started(bus, "monitor", "--payload", "a/") as process:
        assert read_line(process) == HEADING + b" PAYLOAD\n"
        client.pub(b"b/", b"not this")
        client.pub(b"a/b c", b"\x1b\xff\nx")
        line = read_line(process).decode()
        publisher = rf"{user_name(os.getuid())[:7]}\S* +{PROGRAM}\[{os.getpid()}\]"
        shown = r"4   1 a/b\\x20c \\x1b\\xff\\x0ax"
        assert re.fullmatch(rf"\d\d:\d\d:\d\d\.\d\d\d {publisher} +{shown}\n", line)
    with started(bus, "monitor") as process:
        assert read_line(process) == HEADING + b"\n"
        client.pub(b"!/cred////x\x1b[2J", b"secret")
        assert read_line(process).decode().endswith("     -   0 !/cred////x\\x1b[2J\n")


def test_a_message_is_an_object_in_json(bus: Bus, client: RawClient) -> None:
    with started(bus, "monitor", "--json", "--payload", "--count", "3") as process:
        assert process.stdout is not None
        publish_until_seen(client, process.stdout.fileno(), b"a", b"\xff\n")
        for _ in range(3):
            client.pub(b"a", b"\xff\n")
        found: dict[str, Any] = json.loads(read_line(process))
        assert found["time"] > 1e9
        assert found["order"] > 0
        del found["time"], found["order"]
        assert found == {
            "key": "a",
            "size": 2,
            "payload": "/wo=",
            "recipients": 0,
            "client": found["client"],
            "uid": os.getuid(),
            "gid": os.getgid(),
            "pid": os.getpid(),
            "program": PROGRAM,
            "worker": found["worker"],
        }
        status, output, errors = end_of(process)
        assert (status, len(output.splitlines()), errors) == (0, 2, b"")


def test_missed_messages_are_reported(bus: Bus, client: RawClient) -> None:
    read_end, write_end = os.pipe()
    with started(bus, "monitor", "--json", "--payload", stdout=write_end) as process:
        os.close(write_end)
        publish_until_seen(client, read_end, b"a", b"")
        with stopped(process.pid):
            for _ in range(800):
                client.pub(b"a", bytes(20_000))
            client.sync()
        with os.fdopen(read_end, "rb") as lines:
            shown = missed = 0
            while shown + missed < 800:
                item = json.loads(lines.readline())
                missed += item.get("missed", 0)
                shown += item.get("size") == 20_000
        assert missed
        signal_asleep(process.pid, signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130


def test_an_event_is_a_line(bus: Bus) -> None:
    with started(bus, "events") as process:
        assert process.stdout is not None
        with bus.connect() as client:
            publish_until_seen(client, process.stdout.fileno(), b"!/x", b"")
        line = read_line(process).decode()
        assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d\d\d (a packet of )?client \d+ of uid .*\n", line)
        signal_asleep(process.pid, signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130


def test_an_event_is_an_object_in_json(bus: Bus, client: RawClient) -> None:
    with started(bus, "events", "--json", "--count", "1") as process:
        assert process.stdout is not None
        publish_until_seen(client, process.stdout.fileno(), b"!/x", b"")
        event = json.loads(read_line(process))
        assert (event["event"], event["code"]) == ("packet-refused", "reserved")
        assert (event["priority"], event["uid"]) == (5, os.getuid())
        assert end_of(process)[0] == 0


def test_a_bus_that_ends_is_an_error(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path) as bus,
        started(bus, "monitor") as monitor,
        started(bus, "events") as events,
    ):
        assert events.stdout is not None
        read_line(monitor)
        with bus.connect() as client:
            publish_until_seen(client, events.stdout.fileno(), b"!/x", b"")
        stop(bus)
        for process in (monitor, events):
            assert end_of(process)[::2] == (1, b"sbusctl: the bus ends, or is restarted\n")


def test_a_bus_that_is_killed_is_an_error(tmp_path: Path) -> None:
    verbs = (["monitor"], ["top", "--interval", "0.1"], ["stats", "--watch", "--interval", "0.1"])
    with running_bus(tmp_path) as bus, ExitStack() as stack:
        processes = [stack.enter_context(started(bus, *verb)) for verb in verbs]
        for process in processes:
            read_line(process)
        bus.process.kill()
        said = b"sbusctl: the bus has ended or was upgraded, or has closed this connection\n"
        for process in processes:
            assert end_of(process)[::2] == (1, said)


def test_a_refused_watch_is_one_line(bus: Bus) -> None:
    result = bus.sbusctl("monitor", "!/x")
    assert result.returncode == 1
    assert re.fullmatch(rb"sbusctl: .*reserved.*\(bad-request\)\n", result.stderr)
