"""Recorders of real buses record what is published, or a GAP."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import deltalake
import pytest

from sbus.pipeline.store.reader import Recording
from sbus.pipeline.store.recorder_file import recorder_of
from sbus.pipeline.store.writer import is_written
from tests.support.admin import administer
from tests.support.bus import PROJECT, Bus, running_bus, stop
from tests.support.processes import is_replaced, stopped, worker_pids
from tests.support.raw_client import RawClient
from tests.support.recorder_process import (
    Recorder,
    Recorders,
    recorded,
    recorders,
    snapshot,
)
from tests.support.threads import meanwhile, wait_until

GAP: dict[str, Any] = {"kind": "GAP", "key": "", "value": b""}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorders]:
    """With the usual umask."""
    with recorders(tmp_path_factory.mktemp("recorders")) as started:
        yield started


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """One for all: what a test publishes is over when its recorder has stopped."""
    with running_bus(tmp_path_factory.mktemp("bus")) as running:
        yield running


def shown(rows: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


@pytest.mark.parametrize("option", ["--plain", "--flush-ms=50"])
def test_every_message_is_recorded_as_it_was_published(
    bus: Bus, started: Recorders, tmp_path: Path, option: str
) -> None:
    payloads = {
        b"a/b": b"payload",
        b"": b"an empty key",
        b"empty": b"",
        b"\xff\xfe/not utf-8": b"\0\xff\0",
        "ümlaut/\\".encode(): b"MSG x\0y",
        b"large": (bytes(range(256)) * 1600)[: 409_600 - len(b"MSG large\0")],
    }
    recorder = started.start(bus.address, tmp_path / "rec", option)
    before_us = time.time_ns() // 1000
    with bus.connect() as client:
        for key, payload in payloads.items():
            client.pub(key, payload)
        client.sync()
    recorder.stop()
    after_us = time.time_ns() // 1000
    rows = recorded(tmp_path / "rec")
    keys = ["a/b", "", "empty", r"\xff\xfe/not utf-8", "ümlaut/\\\\"]
    assert shown(rows, "key", "value", "kind", "lost") == [
        (key, payload, "MSG", None)
        for key, payload in zip([*keys, "large"], payloads.values(), strict=True)
    ]
    for row in rows:
        assert before_us <= row["timestamp"].timestamp() * 1e6 <= after_us
        assert row["bus"] == bus.address
        assert row["host"] == os.uname().nodename
    (name,) = Recording(tmp_path / "rec").tables("messages")
    assert {row["recorder"] for row in rows} == {recorder_of(name)}


@pytest.mark.parametrize("option", ["--plain", "--flush-ms=50"])
def test_only_matching_messages_are_recorded_each_once(
    bus: Bus, started: Recorders, tmp_path: Path, option: str
) -> None:
    recorder = started.start(bus.address, tmp_path / "rec", option, patterns=("a/", "*/x"))
    with bus.connect() as client:
        for key in (b"a/x", b"b/x", b"b/y", b"a/z"):
            client.pub(key, b"")
        client.sync()
    recorder.stop()
    assert shown(recorded(tmp_path / "rec"), "key") == [("a/x",), ("b/x",), ("a/z",)]


def test_a_recorder_that_continues_begins_with_a_gap(
    bus: Bus, started: Recorders, tmp_path: Path
) -> None:
    """Unless it continues an empty recording."""
    started.start(bus.address, tmp_path / "rec", "--plain").stop()
    assert recorded(tmp_path / "rec") == []
    for number in range(3):
        recorder = started.start(bus.address, tmp_path / "rec", "--plain")
        with bus.connect() as client:
            client.pub(b"k", b"%d" % number)
            client.sync()
        recorder.stop()
    expected = [("k", b"0", "MSG"), ("", b"", "GAP"), ("k", b"1", "MSG"), ("", b"", "GAP")]
    rows = recorded(tmp_path / "rec")
    assert shown(rows, "key", "value", "kind") == [*expected, ("k", b"2", "MSG")]
    assert {row["lost"] for row in rows} == {None}


@pytest.mark.parametrize(("option", "padding"), [("--plain", 0), ("--flush-ms=50", 20_000)])
def test_messages_that_the_bus_drops_are_a_gap_in_their_place(
    started: Recorders, tmp_path: Path, option: str, padding: int
) -> None:
    limits = ("--limit", "backlog_messages_max=10")
    with running_bus(tmp_path, *limits, workers=1) as bus, bus.connect() as client:
        recorder = started.start(bus.address, tmp_path / "rec", option)
        with stopped(recorder.pid):
            for number in range(2_000):
                client.pub(b"k", b"%d" % number + b" " * padding)
            client.sync()
        client.pub(b"k", b"2000")
        client.sync()
        recorder.stop()
    rows = recorded(tmp_path / "rec")
    gaps = [row for row in rows if row["kind"] == "GAP"]
    assert gaps
    expected = 0
    for row in rows:
        if row["kind"] == "GAP":
            expected += row["lost"]
        else:
            assert int(row["value"]) == expected
            expected += 1
    assert expected == 2_001


def test_when_the_bus_ends_the_recorder_writes_what_came_and_fails(
    started: Recorders, tmp_path: Path
) -> None:
    with running_bus(tmp_path, workers=1) as bus:
        recorder = started.start(bus.address, tmp_path / "rec", "--plain")
        with bus.connect() as client:
            client.pub(b"k", b"last")
            client.sync()
        stop(bus)
        assert recorder.wait() == 1
    assert shown(recorded(tmp_path / "rec"), "value") == [(b"last",)]
    assert "the bus ends, or is restarted (stopping)" in recorder.stderr_text()


def test_without_a_bus_neither_rows_nor_a_gap_are_recorded(
    started: Recorders, tmp_path: Path
) -> None:
    recorder = started.begin(str(tmp_path / "no.socket"), tmp_path / "rec")
    assert recorder.wait() == 1
    assert "cannot connect" in recorder.stderr_text()
    assert recorded(tmp_path / "rec") == []


def test_everything_is_sealed_at_an_orderly_end(
    bus: Bus, started: Recorders, tmp_path: Path
) -> None:
    recorder = started.start(bus.address, tmp_path / "rec")
    with bus.connect() as client:
        publish_some(client, 0)
    recorder.stop()
    rows = deltalake.DeltaTable(str(tmp_path / "rec/messages")).to_pyarrow_table().to_pylist()
    assert sorted(row["value"] for row in rows) == [b"%d" % number for number in range(10)]
    assert [row["offset"] for row in recorded(tmp_path / "rec")] == list(range(10))


def test_rows_are_sealed_to_a_table_elsewhere(bus: Bus, started: Recorders, tmp_path: Path) -> None:
    options = ("--plain", "--table", str(tmp_path / "table"))
    recorder = started.start(bus.address, tmp_path / "rec", *options)
    with bus.connect() as client:
        publish_some(client, 0)
    recorder.stop()
    assert not (tmp_path / "rec/messages").exists()
    for place in ("rec", "table"):
        values = [row["value"] for row in recorded(tmp_path / place)]
        assert values == [b"%d" % number for number in range(10)]
    other = started.begin(bus.address, tmp_path / "rec", "--plain")
    assert other.wait() == 1
    assert f"is sealed to {tmp_path / 'table'}" in other.stderr_text()


def publish_some(client: RawClient, first: int) -> None:
    for number in range(first, first + 10):
        client.pub(b"k", b"%d" % number)
        client.sync()


def test_a_recording_has_one_recorder_of_a_bus_and_is_not_replayed_onto_that(
    bus: Bus, started: Recorders, tmp_path: Path
) -> None:
    recorder = started.start(bus.address, tmp_path / "rec", "--plain")
    second = started.begin(bus.address, tmp_path / "rec", "--plain")
    assert second.wait() == 1
    assert second.stderr_text().count("\n") == 1
    assert "another recorder" in second.stderr_text()
    words = ("-m", "sbus.pipeline", "replay", str(tmp_path / "rec"), "-a", bus.address)
    command = [sys.executable, *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert ended.returncode == 1
    assert f"{bus.address} is being recorded in {tmp_path}/rec" in ended.stderr
    recorder.stop()
    assert recorded(tmp_path / "rec") == []
    (name,) = Recording(tmp_path / "rec").tables("messages")
    assert not is_written(tmp_path / "rec", recorder_of(name))


# -- with the right to administer the bus ----------------------------------------------------------
def test_an_administrator_records_publishers_and_recipients(
    bus: Bus, started: Recorders, tmp_path: Path
) -> None:
    recorder = started.start(bus.address, tmp_path / "rec")
    with bus.connect() as listener, bus.connect() as client:
        listener.sub(b"a/")
        listener.sync()
        identity = client.whoami()
        client.pub(b"a/b", b"one")
        client.pub(b"b", b"other")
        client.pub(identity + b"/secret", b"never shown")
        client.sync()
        (number,) = [
            c["client"] for c in administer_clients(bus) if c["activity"]["messages_in"] == 3
        ]
    recorder.stop()
    me = (os.getuid(), os.getgid(), os.getpid())
    rows = recorded(tmp_path / "rec")
    assert shown(rows, "key", "value", "recipients", "uid", "gid", "pid", "client") == [
        ("a/b", b"one", 1, *me, number),
        ("b", b"other", 0, *me, number),
        ((identity + b"/secret").decode(), None, 0, *me, number),
    ]
    assert all(row["program"] for row in rows)


def administer_clients(bus: Bus) -> list[dict[str, Any]]:
    with administer(bus) as admin:
        return [client for page in admin.pages("clients", "clients") for client in page]


def test_an_administrator_records_clients_and_events(
    bus: Bus, started: Recorders, tmp_path: Path
) -> None:
    recorder = started.start(bus.address, tmp_path / "rec", "--snapshot-seconds", "0.05")
    with bus.connect() as client:
        client.sub(b"a/")
        client.pub(b"x", b"")
        client.whoami()

        def snapshots() -> list[dict[str, Any]]:
            rows = recorded(tmp_path / "rec", "clients")
            return [row for row in rows if row["pid"] == os.getpid() and row["messages_in"] == 1]

        wait_until(lambda: bool(snapshots()), "a snapshot with the client")
        row = snapshots()[0]
        assert (row["uid"], row["gid"]) == (os.getuid(), os.getgid())
        assert (row["subscriptions"], row["soft"], row["stalled"]) == (1, "queue", False)
        assert abs(row["connected_at"].timestamp() - time.time()) < 60

    def events() -> dict[str, dict[str, Any]]:
        rows = recorded(tmp_path / "rec", "events")
        return {row["event"]: row for row in rows if row["client"] == snapshots()[0]["client"]}

    wait_until(lambda: "client-disconnected" in events(), "its end is an event")
    subscribed = events()["client-subscribed"]
    assert (subscribed["uid"], subscribed["client"]) == (os.getuid(), row["client"])
    assert '"a/"' in subscribed["fields"]
    with administer(bus) as admin:
        accepted = admin.ask("stats")["traffic"]["accepted"]

    def deliveries() -> int:
        rows = [row for row in recorded(tmp_path / "rec", "events") if row["event"] == "stats"]
        latency = json.loads(rows[-1]["fields"])["latency"]
        assert len(latency["counts"]) == len(latency["bounds_us"]) + 1
        return sum(latency["counts"])

    wait_until(lambda: deliveries() == accepted, "the histogram of all deliveries")
    recorder.stop()


def test_without_the_right_to_administer_only_messages_are_recorded(
    started: Recorders, tmp_path: Path
) -> None:
    with running_bus(tmp_path, "--admin-address", "none", workers=1) as bus:
        recorder = started.start(bus.address, tmp_path / "rec")
        with bus.connect() as client:
            client.pub(b"k", b"v")
            client.sync()
        recorder.stop()
    assert shown(recorded(tmp_path / "rec"), "key", "value", "uid") == [("k", b"v", None)]
    assert "without publishers" in recorder.stderr_text()
    assert "admin" in recorder.stderr_text()


@pytest.mark.parametrize("option", ["--plain", "--flush-ms=50"])
def test_probes_hold_their_time_of_sending(
    bus: Bus, started: Recorders, tmp_path: Path, option: str
) -> None:
    before_us = time.time_ns() // 1000
    directory = tmp_path / "rec"
    recorder = started.start(bus.address, directory, option, "--probe", patterns=("no/other",))
    wait_until(lambda: snapshot(directory).end > 0, "a probe")
    recorder.stop()
    row = recorded(directory)[0]
    assert row["key"] == f"sbus/probe/{row['recorder']}"
    assert before_us <= int(row["value"]) <= row["timestamp"].timestamp() * 1e6 + 1


# -- a full disk -----------------------------------------------------------------------------------
@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "sbus-test", str(directory)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


class Numbers:
    """Publishes numbered messages."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._number = 0

    def publish(self) -> None:
        with self._bus.connect() as client:
            for _ in range(20):
                client.pub(b"k", b"%d:%b" % (self._number, os.urandom(100)))
                self._number += 1
            client.sync()

    def publish_until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.publish()

    def fill_up(self, recorder: Recorder, directory: Path, reason: str) -> int:
        """Publish until it has stopped, cleanly, with one line that says so and before which offset
        all is safe; returns that."""
        self.publish()
        wait_until(lambda: snapshot(directory).end >= 20, "something is committed")
        with meanwhile(self.publish_until):
            assert recorder.wait() == 1
        _, complaint = recorder.stderr_text().splitlines()
        assert reason in complaint
        end = snapshot(directory).end
        assert f"all before offset {end} is safe" in complaint
        assert len(recorded(directory)) == end
        return end


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(b"-" * 512):
            pass


def test_a_full_disk_stops_the_recorder_until_there_is_room(
    bus: Bus, started: Recorders, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    options = ("--plain", "--flush-ms", "5", "--roll-bytes", "100000")
    numbers = Numbers(bus)
    with small_disk(disk):
        directory = disk / "rec"
        recorder = started.start(bus.address, directory, *options)
        end = numbers.fill_up(recorder, directory, "No space left on device")
        fill(disk)
        again = started.begin(bus.address, directory, *options)
        assert again.wait() == 1
        assert "No space left on device" in again.stderr_text()
        assert snapshot(directory).end == end
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        recorder = started.start(bus.address, directory, *options)
        numbers.publish()
        recorder.stop()
        rows = recorded(directory)
    assert shown(rows[end : end + 1], "kind", "lost") == [("GAP", None)]
    found = [int(row["value"].partition(b":")[0]) for row in rows if row["kind"] == "MSG"]
    assert len(found) == end + 20
    assert found[:end] == list(range(end))
    assert found[end:] == list(range(found[end], found[end] + 20))


def test_a_file_size_limit_stops_the_recorder_like_a_full_disk(
    bus: Bus, started: Recorders, tmp_path: Path
) -> None:
    options = ("--plain", "--flush-ms", "5")
    directory = tmp_path / "rec"
    recorder = started.start(bus.address, directory, *options, file_bytes_max=50_000)
    Numbers(bus).fill_up(recorder, directory, "File too large")


def test_others_cannot_read_a_recording(bus: Bus, started: Recorders, tmp_path: Path) -> None:
    options = ("--plain", "--flush-ms", "1", "--roll-bytes", "1")
    recorder = started.start(bus.address, tmp_path / "rec", *options)
    with bus.connect() as client:
        client.pub(b"key", b"payload")
        client.sync()
    wait_until(lambda: list((tmp_path / "rec").rglob("*.parquet")) != [], "a sealed file")
    recorder.stop()
    paths = [tmp_path / "rec", *(tmp_path / "rec").rglob("*")]
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}
    assert modes == {(True, 0o700), (False, 0o600)}


# -- how it ends -----------------------------------------------------------------------------------
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_recorder_once_everything_is_written(
    bus: Bus, started: Recorders, tmp_path: Path, signum: signal.Signals
) -> None:
    recorder = started.start(bus.address, tmp_path / "rec", "--plain", "--flush-ms", "60000")
    with bus.connect() as client:
        for number in range(300):
            client.pub(b"k", b"%d" % number)
        client.sync()
        os.kill(recorder.pid, signum)
        assert recorder.wait() == 0
    assert shown(recorded(tmp_path / "rec"), "value") == [(b"%d" % n,) for n in range(300)]


def test_the_recorder_outlives_a_worker(started: Recorders, tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=1) as bus, bus.connect() as client:
        recorder = started.start(bus.address, tmp_path / "rec", "--plain")
        dead = worker_pids(bus)[0]
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: is_replaced(bus, 0, dead), "the worker is replaced")
        client.pub(b"k", b"after")
        client.sync()
        os.kill(recorder.pid, signal.SIGTERM)
        assert recorder.wait() == 0
    assert shown(recorded(tmp_path / "rec"), "value") == [(b"after",)]
