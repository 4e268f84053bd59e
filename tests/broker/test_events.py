"""The stream of events: every event that a test can cause from outside is in it."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.admin import administer
from tests.support.block_scene import OPTIONS, SOFT, receive_all, scene_on
from tests.support.bus import SBUSD, Bus, running_bus
from tests.support.processes import (
    clients_on_each,
    is_replaced,
    process_name,
    several_clients,
    worker_pids,
)
from tests.support.streams import events_of, messages_of
from tests.support.threads import wait_until

ME = {"uid": os.geteuid(), "gid": os.getegid(), "pid": os.getpid()}
PROGRAM = Path("/proc/self/comm").read_text().removesuffix("\n")


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with running_bus(tmp_path_factory.mktemp("bus")) as running:
        yield running


def test_a_client_comes_subscribes_and_leaves(bus: Bus) -> None:
    with events_of(bus) as stream:
        with bus.connect() as client:
            client.sub(b"a/*")
            client.unsub(b"a/*")
            client.sync()
        found = stream.up_to(lambda event: event["event"] == "client-disconnected")
    connected, subscribed, unsubscribed, gone = found
    assert [event["event"] for event in found] == [
        *("client-connected", "client-subscribed", "client-unsubscribed", "client-disconnected"),
    ]
    for event in found:
        assert ME.items() <= event.items()
        assert (event["client"], event["program"]) == (connected["client"], PROGRAM)
    assert subscribed["pattern"] == unsubscribed["pattern"] == "a/*"
    assert gone["reason"] == ""
    assert connected["worker"] == gone["worker"]
    assert [event["time"] for event in found] == sorted(event["time"] for event in found)


def test_refused_and_misbehaving_clients(bus: Bus) -> None:
    with events_of(bus) as stream:
        with bus.connect() as client:
            client.pub(b"!/x", b"")
            refused = stream.next("packet-refused", code="reserved")
            assert ME.items() <= refused.items()
            client.send(b"HELLO")
            found = stream.up_to(lambda event: event["event"] == "client-disconnected")
        expelled, gone = found
        assert (expelled["event"], expelled["code"]) == ("client-expelled", "unknown-word")
        assert gone["reason"] == "unknown-word"
        assert expelled["client"] == gone["client"] == refused["client"]


def test_what_an_administrator_does_is_an_event(bus: Bus) -> None:
    with events_of(bus) as stream, administer(bus) as admin:
        admin.ask("limit", uid=1234, limits={"connections_max": 5})
        assert stream.next("limits-changed")["changes"] == ["connections_max=5"]
        admin.exchange(b'{"verb":"reload"}')
        assert "--config" in stream.next("configuration-rejected")["why"]


def test_a_limit_is_reached_and_connections_are_refused(tmp_path: Path) -> None:
    limits = ("--limit", "user_connections_max=2")
    with running_bus(tmp_path, *limits) as bus, events_of(bus) as stream:
        with several_clients(bus, 2):
            for _ in range(3):
                with bus.connect() as refused:
                    refused.receive_until_closed()
        found = stream.up_to(lambda event: event["event"] == "client-disconnected")
        with administer(bus) as admin:
            stats = admin.ask("stats")
    assert stats["connections_refused"] == {"too-many-connections": 3}
    assert stats["connections_accepted"] == 2
    refusals = [event for event in found if event["event"] == "connection-refused"]
    assert [event["code"] for event in refusals] == ["too-many-connections"] * 3
    (reached,) = [event for event in found if event["event"] == "limit-reached"]
    assert reached["limit"] == "user_connections_max"
    assert ME.items() <= reached.items()


def test_access_rules_deny_something(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[[rules]]\ndeny = ["publish"]\nkeys = ["secret/"]\n')
    with running_bus(tmp_path, "--config", str(config)) as bus, events_of(bus) as stream:
        with bus.connect() as client:
            client.pub(b"secret/x", b"")
            denied = stream.next("access-denied")
        assert (denied["key"], denied["rule"]) == ("secret/x", 0)
        config.write_text("[bus]\nworkers = 5\n[limits]\nuser_connections_max = 7\n")
        with administer(bus) as admin:
            admin.ask("reload")
        reloaded = stream.next("configuration-reloaded")
        assert "limits.user_connections_max" in reloaded["applied"]


def test_discarded_messages_are_reported_for_each_client(tmp_path: Path) -> None:
    limits = ("--limit", "backlog_messages_max=10", "--limit", "socket_buffer_bytes=20000")
    with (
        running_bus(tmp_path, *limits) as bus,
        clients_on_each(bus, 2, 2) as clients,
        events_of(bus) as stream,
    ):
        slow, publisher = clients[0][0], clients[1][0]
        slow.control(b"!/notices/on")
        slow.sub(b"a")
        slow.sync()
        for _ in range(2000):
            publisher.pub(b"a", bytes(1000))
        publisher.sync()
        lost = sum(int(p.partition(b"\0")[2]) for p in slow.sync() if p.startswith(b"CMSG !/lost"))
        told = 0
        reasons: set[str] = set()
        while told < lost:
            event = stream.next("messages-discarded")
            assert ME.items() <= event.items()
            told += event["count"]
            reasons |= event["reasons"].keys()
        assert (told, reasons) == (lost, {"hard"})


def test_a_client_stalls_and_resumes(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, *OPTIONS, workers=2) as bus,
        scene_on(bus, 2, 1) as scene,
        events_of(bus) as stream,
    ):
        scene.subscribe(scene.slow, *SOFT)
        sent = scene.hold()
        stalled = stream.next("client-stalled")
        with administer(bus) as admin:
            found, stats = admin.ask("explain", key="k"), admin.ask("stats")
        assert (found["stalled_count"], found["recipients"][0]["stalled"]) == (1, True)
        assert (stats["stalled_clients"], stats["traffic"]["stalls"]) == (1, 1)
        receive_all(scene.slow, sent)
        assert stream.next("client-resumed")["client"] == stalled["client"]


def test_workers_die_and_are_replaced(tmp_path: Path) -> None:
    limits = ("--limit", "worker_silence_seconds_max=1")
    with running_bus(tmp_path, *limits) as bus, events_of(bus) as stream:
        dead = worker_pids(bus)[1]
        os.kill(dead, signal.SIGKILL)
        died = stream.next("worker-died", worker=1)
        assert (died["worker_pid"], died["how"]) == (dead, "signal 9")
        wait_until(lambda: is_replaced(bus, 1, dead), "it is replaced")
        started = stream.next("worker-started", worker=1)
        assert started["worker_pid"] not in (dead, 0)
        os.kill(worker_pids(bus)[0], signal.SIGSTOP)
        stream.next("worker-silent", worker=0)
        stream.next("worker-died", worker=0)


def test_that_a_watcher_misses_messages_is_an_event(bus: Bus) -> None:
    with events_of(bus) as stream, messages_of(bus, payload=True), bus.connect() as client:
        for _ in range(1000):
            client.pub(b"a", bytes(20_000))
        client.sync()
        assert stream.next("stream-missed")["worker"] in (0, 1)


def test_no_process_waits_for_a_reader_of_standard_error(tmp_path: Path) -> None:
    """When it is read again, the next line says how many are missing."""
    fifo = tmp_path / "errors"
    os.mkfifo(fifo)
    pipe = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    command = ("sh", "-c", f'exec "$@" 2>"{fifo}"', "sh", *SBUSD)
    with running_bus(tmp_path, "--log", "stderr", command=command) as bus:
        for pid in bus.pids():
            (flags,) = re.findall(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/2").read_text())
            assert int(flags, 8) & os.O_NONBLOCK, process_name(pid)
        with administer(bus) as admin:
            for _ in range(3):  # each is two lines
                admin.ask("limit", uid=1000, limits={"connections_max": 5})
            assert not os.read(pipe, 1 << 20).strip(b"\0")
            admin.ask("limit", uid=1000, limits={"connections_max": 6})
        line, *_ = os.read(pipe, 1 << 20).decode().splitlines()
    told = re.search(r"asked: limit .* \(lost before it, because the log was full: (\d+)\)$", line)
    assert told, line
    assert int(told[1]) >= 6
    os.close(pipe)


def test_who_administers_is_recorded(tmp_path: Path) -> None:
    """Each change, and each look at other users' messages, with the process that asked; changes
    are in the log as well as in the stream."""
    me = {**ME, "program": PROGRAM}
    configuration = tmp_path / "sbus.toml"
    configuration.write_text("")
    with running_bus(tmp_path, "--config", str(configuration)) as bus, events_of(bus) as stream:
        with administer(bus) as admin, bus.connect() as client:
            client.sync()
            number = stream.next("client-connected")["client"]
            asked = {
                "limit": {"uid": 1000, "limits": {"connections_max": 5}},
                "reload": {},
                "move": {"client": number, "worker": 0},
                "kick": {"client": number, "text": "b\x1bye"},
            }
            admin.ask("limit", uid=1000)  # changes nothing
            for verb, arguments in asked.items():
                admin.ask(verb, **arguments)
                acted = stream.next("administrator-acted")
                assert me.items() <= acted.items()
                assert (acted["verb"], json.loads(f"{{{acted['arguments']}}}")) == (verb, arguments)
            assert stream.next("client-kicked", client=number)["why"] == "b\x1bye"
            with messages_of(bus, b"secret/*"):
                begun = stream.next("monitor-began")
            ended = stream.next("monitor-ended")
            for event in (begun, ended):
                assert me.items() <= event.items()
                assert event["arguments"] == '"patterns":["secret/*"]'
            admin.ask("drain")
            assert stream.next("administrator-acted")["verb"] == "drain"
        wait_until(lambda: bus.process.poll() is not None, "the bus has ended")
        assert bus.stderr_text().count("asked: kick") == 1
