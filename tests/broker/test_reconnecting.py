"""Clients that asked to reconnect, while their bus is killed and back."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

import sbus
from tests.support.bus import Bus, kill_tree, running_bus, sbusd_environment
from tests.support.event_loops import on_both_event_loops
from tests.support.raw_client import RawClient
from tests.support.threads import Task

TIMEOUT_S = 60.0
RETRY_S = 0.05
GONE = "the bus closed the connection"

Reporting = sbus.blocking.Connection[sbus.Message | sbus.Lost]


@contextmanager
def bus_at(directory: Path, *options: str) -> Iterator[Bus]:
    """A bus at the same address as the one before, whose socket was left behind if it was
    killed."""
    with running_bus(directory, "--replace", *options) as bus:
        yield bus


def freeze(bus: Bus) -> None:
    for pid in bus.pids():
        os.kill(pid, signal.SIGSTOP)


def kill(bus: Bus) -> None:
    """Kill all processes at once: none has time to say why. All of their sockets are closed
    behind it."""
    watched = [os.pidfd_open(pid) for pid in bus.pids()]
    freeze(bus)
    kill_tree(bus.process)
    for pidfd in watched:
        assert select.select([pidfd], [], [], TIMEOUT_S)[0], "it does not end"
        os.close(pidfd)


def reporting(bus: Bus) -> Reporting:
    return sbus.blocking.connect(bus.address, losses="report", reconnect=True)


def publish(bus: Bus, key: bytes, *payloads: bytes) -> None:
    with bus.connect() as other:
        for payload in payloads:
            other.pub(key, payload)
        other.sync()


# -- a bus that is killed --------------------------------------------------------------------------


def test_a_blocking_client_goes_on_as_before(tmp_path: Path) -> None:
    with bus_at(tmp_path) as bus:
        client = reporting(bus)
        client.control("echo/off")
        for pattern in ("a/", "twice", "twice", "never"):
            client.subscribe(pattern)
        client.unsubscribe("never")
        secret = client.whoami(timeout_seconds=TIMEOUT_S).secret_key("x")
        client.subscribe(secret)
        client.sync(timeout_seconds=TIMEOUT_S)
        publish(bus, b"a/1", b"before")
        kill(bus)
    assert client.receive(timeout_seconds=TIMEOUT_S) == sbus.Message(b"a/1", b"before")
    with bus_at(tmp_path) as bus, client:
        assert client.receive(timeout_seconds=TIMEOUT_S) == sbus.Reconnected(None, GONE)
        client.unsubscribe("twice")
        client.publish("a/2", "an echo")
        client.sync(timeout_seconds=TIMEOUT_S)
        for key in (b"never", b"twice", secret, b"a/3"):
            publish(bus, key, b"after")
        received = [client.receive(timeout_seconds=TIMEOUT_S) for _ in range(3)]
        assert received == [sbus.Message(key, b"after") for key in (b"twice", secret, b"a/3")]


@on_both_event_loops
async def test_an_asynchronous_client_goes_on_while_its_other_tasks_wait(
    tmp_path: Path,
) -> None:
    received: list[bytes] = []
    interruptions: list[str] = []

    async def iterate(client: sbus.Connection[sbus.Message]) -> None:
        while b"end" not in received:
            try:
                received.extend([(await client.receive()).payload])
            except sbus.ConnectionInterrupted as interruption:
                interruptions.append(interruption.reason)

    async def publish_and_sync(client: sbus.Connection[sbus.Message], payload: str) -> None:
        await client.publish("a", payload)
        await client.sync()

    with anyio.fail_after(TIMEOUT_S):
        with bus_at(tmp_path) as bus:
            connecting = sbus.connect(bus.address, losses="raise", reconnect=True)
            client = await connecting.__aenter__()
            await client.subscribe("a")
            await publish_and_sync(client, "before")
            assert (await client.receive()).payload == b"before"
            kill(bus)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(iterate, client)
            await anyio.wait_all_tasks_blocked()
            for number in range(5):
                tasks.start_soon(publish_and_sync, client, f"{number}")
            await anyio.wait_all_tasks_blocked()
            with bus_at(tmp_path):
                while len(received) < 5:
                    await client.sync()
                await publish_and_sync(client, "end")
                while len(received) < 6:  # the other task takes it
                    await client.sync()
                await connecting.__aexit__(None, None, None)
    assert interruptions == [GONE]
    assert sorted(received[:5]) == [b"0", b"1", b"2", b"3", b"4"]
    assert received[5:] == [b"end"]


@on_both_event_loops
async def test_closing_ends_the_wait_for_a_bus(tmp_path: Path) -> None:
    with anyio.fail_after(TIMEOUT_S):
        with bus_at(tmp_path) as bus:
            async with sbus.connect(bus.address, reconnect=True) as client:
                kill(bus)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anext, client, None)
                    await anyio.wait_all_tasks_blocked()
                    client.close()
                with pytest.raises(sbus.Disconnected, match="this program has closed"):
                    await client.receive()


def test_a_wait_for_the_bus_takes_no_longer_than_the_timeout(tmp_path: Path) -> None:
    with bus_at(tmp_path) as bus:
        client = reporting(bus)
        client.sync(timeout_seconds=TIMEOUT_S)
        kill(bus)
    for call in (client.sync, client.receive, lambda **kw: client.publish("a", **kw)):
        with pytest.raises(TimeoutError):
            call(timeout_seconds=0.2)
    with bus_at(tmp_path), client:
        client.publish("a", timeout_seconds=TIMEOUT_S)
        client.sync(timeout_seconds=TIMEOUT_S)


def test_a_loop_outlives_the_bus_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when nobody knows what has become of the last messages of this client."""
    with bus_at(tmp_path) as bus:
        client = sbus.blocking.connect(bus.address, reconnect=True)
        client.subscribe("a")
        client.sync(timeout_seconds=TIMEOUT_S)
        publish(bus, b"a", b"before")
        freeze(bus)
        client.publish("b", "of unknown fate")
        kill(bus)
    payloads: list[bytes] = []

    def iterate() -> None:
        for message in client:
            payloads.append(message.payload)
            if message.payload == b"end":
                break

    with bus_at(tmp_path) as bus, client:
        loop = Task(iterate)
        while not loop.ends_within(RETRY_S):
            publish(bus, b"a", b"end")
        assert payloads == [b"before", b"end"]
        with pytest.raises(sbus.MessagesUnconfirmed, match="1 published"):
            client.sync(timeout_seconds=TIMEOUT_S)
    assert {record.name for record in caplog.records} == {"sbus"}
    unconfirmed, gap = (record.getMessage() for record in caplog.records)
    assert "1 published messages are unconfirmed" in unconfirmed
    assert f"the connection was lost and is back; messages may be missing: {GONE}" in gap


# -- many refusals --------------------------------------------------------------------------------


def test_a_client_comes_back_whose_many_subscriptions_are_refused(tmp_path: Path) -> None:
    """The notices of refusals fill its socket before all subscriptions are sent."""
    with bus_at(tmp_path) as bus:
        client = reporting(bus)
        for number in range(3_000):
            client.subscribe(f"denied/{number}")
        client.sync(timeout_seconds=TIMEOUT_S)
        kill(bus)
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\ndeny = ["subscribe"]\nkeys = ["denied/"]\n')
    with bus_at(tmp_path, "--config", str(rules)), client:
        with pytest.raises(sbus.PacketRefused, match="not-allowed"):
            client.receive(timeout_seconds=TIMEOUT_S)
        assert client.receive(timeout_seconds=TIMEOUT_S) == sbus.Reconnected(None, GONE)
        with suppress(sbus.PacketRefused):  # for the notices behind those
            client.sync(timeout_seconds=TIMEOUT_S)
        client.sync(timeout_seconds=TIMEOUT_S)


# -- sbusctl sub -----------------------------------------------------------------------------------


def read_until(process: subprocess.Popen[bytes], publisher: RawClient, payload: bytes) -> bytes:
    """Publish this payload until the program prints it; everything up to there."""
    assert process.stdout is not None
    printed = b""
    for _ in range(int(TIMEOUT_S / RETRY_S)):
        publisher.pub(b"a", payload)
        if select.select([process.stdout], [], [], RETRY_S)[0]:
            printed += os.read(process.stdout.fileno(), 65_536)
        if payload in printed:
            return printed
    raise AssertionError(f"{payload!r} was not printed, only {printed!r}")


def is_why(text: str) -> bool:
    """Whether this may be why a killed bus is gone: a worker that outlives the others says it."""
    return text == GONE or text.endswith((" (stopping)", " (bus-failed)"))


@pytest.mark.parametrize("form", ["text", "json"])
def test_sbusctl_sub_says_that_the_connection_is_back(tmp_path: Path, form: str) -> None:
    words = ["sub", "--reconnect", "a", *(["--json"] if form == "json" else [])]
    with bus_at(tmp_path) as bus:
        process = subprocess.Popen(
            [sys.executable, "-m", "sbus.cli.sbusctl", "-a", bus.address, *words],
            env=sbusd_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with bus.connect() as publisher:
            read_until(process, publisher, b"before")
        kill(bus)
    try:
        with bus_at(tmp_path) as bus, bus.connect() as publisher:
            printed = read_until(process, publisher, b"after")
    finally:
        process.kill()
        errors = process.communicate(timeout=TIMEOUT_S)[1]
    if form == "json":
        (gap,) = [item for item in map(json.loads, printed.splitlines()) if "lost" in item]
        assert gap["lost"] is None
        assert is_why(gap["reconnected"])
        assert not errors
    else:
        assert b"lost" not in printed
        begin, _, why = errors.decode().partition("; messages may be missing: ")
        assert begin == "sbusctl: the connection was lost and is back"
        assert is_why(why.removesuffix("\n"))
