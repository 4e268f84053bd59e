"""The client library with a real bus: its promises to its users, end to end.

`tests/unit/client` has both clients, and the asynchronous one on both event loops.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

import sbus
from tests.support.bus import SBUSCTL, Bus, running_bus, sbusd_environment
from tests.support.event_loops import on_both_event_loops
from tests.support.threads import Task, wait_until

TIMEOUT_S = 60.0
IDENTITY = (os.getgid(), os.getuid(), os.getpid())


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


async def test_a_bus_of_the_dot_dialect_is_named_as_what_may_have_hung_up(tmp_path: Path) -> None:
    """By the library, and by sbusctl with and without it."""
    with running_bus(tmp_path, "--dialect", "dot") as bus, anyio.fail_after(TIMEOUT_S):
        with pytest.raises(sbus.Disconnected, match="connect with dialect='dot'"):
            async with sbus.connect(bus.address) as client:
                await client.sync()
        with pytest.raises(sbus.Disconnected, match="connect with dialect='dot'"):
            async with sbus.connect(bus.address, reconnect=True):
                pass
        assert b"sbusctl --dialect dot" in bus.sbusctl("ping", "--count", "1").stderr
        short = pub_without_the_library(bus)
        assert (short.returncode, b"sbusctl --dialect dot" in short.stderr) == (1, True)


def pub_without_the_library(bus: Bus) -> subprocess.CompletedProcess[bytes]:
    """`sbusctl pub` at the default address."""
    return subprocess.run(
        [*SBUSCTL, "pub", "k", "x"],
        env={**sbusd_environment(), "SBUS_ADDRESS": bus.address},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


async def test_many_messages_are_published_at_once(tmp_path: Path) -> None:
    """More than the bus takes without a wait, and up to the first that is too long."""
    payloads = [b"%d" % number for number in range(20_000)]
    with running_bus(tmp_path) as bus, anyio.fail_after(TIMEOUT_S):
        async with sbus.connect(bus.address) as listener, sbus.connect(bus.address) as speaker:
            await listener.control("blocking/soft/block")
            await listener.subscribe("k")
            await listener.sync()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(speaker.publish_many, "k", payloads)
                assert [(await listener.receive()).payload for _ in payloads] == payloads
            with pytest.raises(sbus.PacketRefused, match="packet-too-long"):
                await speaker.publish_many("k", [b"a", bytes(409_600), b"b"])
            await speaker.sync()
            assert (await listener.receive()).payload == b"a"
        with sbus.blocking.connect(bus.address) as own:
            own.subscribe("k")
            own.publish_many("k", [b"1", "2"])
            own.publish_many("k", [])
            with pytest.raises(TypeError):
                own.publish_many("k", [3])  # type: ignore[list-item]
            assert [own.receive().payload for _ in range(2)] == [b"1", b"2"]


def test_senders_asked_for_later_leave_room_for_the_largest_packet(bus: Bus) -> None:
    with sbus.blocking.connect(bus.address) as client:
        client.control("sender/on")
        client.subscribe("k")
        client.sync()
        client.publish("k", bytes(409_594))
        message = client.receive(timeout_seconds=60)
        assert len(message.payload) == 409_594
        assert message.sender is not None
        assert (message.sender.gid, message.sender.uid, message.sender.pid) == IDENTITY
    with pytest.raises(sbus.ConfigurationError):
        sbus.blocking.connect(bus.address, sender=True, dialect="dot")


def in_child(call: Callable[[], str]) -> str:
    """What this call in a forked process returns."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, call().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        told = stream.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return told


def test_a_connection_is_of_no_use_in_a_forked_child_and_unharmed_in_its_parent(bus: Bus) -> None:
    def use() -> str:
        told = []
        calls = (client.receive, client.sync, lambda: client.publish("a"), messages.receive)
        for call in calls:
            with pytest.raises(sbus.Disconnected) as caught:
                call()
            told.append(str(caught.value))
        streams.close()  # unsubscribes from nothing of the parent's
        client.close()
        return told[0] if len(set(told)) == 1 else repr(told)

    with sbus.blocking.connect(bus.address) as client, ExitStack() as streams:
        client.subscribe("a")
        messages = streams.enter_context(client.subscription("b"))
        client.publish("a", "1")
        client.publish("b", "1")
        client.sync(timeout_seconds=TIMEOUT_S)
        assert in_child(use) == "this connection is that of the parent process: connect again"
        client.publish("a", "2")
        client.publish("b", "2")
        for stream in (client, messages):
            received = [stream.receive(timeout_seconds=TIMEOUT_S).payload for _ in range(2)]
            assert received == [b"1", b"2"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_can_close_a_connection_that_another_thread_was_using(bus: Bus) -> None:
    def close() -> str:
        client.close()
        return "closed"

    with sbus.blocking.connect(bus.address) as client:
        client.subscribe("a")
        waiting = Task(client.receive)
        wait_until(lambda: repr(client._io.call.in_use).startswith("<locked"), "it waits")
        assert in_child(close) == "closed"
        with bus.connect() as other:
            other.pub(b"a", b"")
            other.sync()
        waiting.join()


@on_both_event_loops
async def test_a_connection_of_an_event_loop_ends_in_a_forked_child_as_well(bus: Bus) -> None:
    def use() -> str:
        with pytest.raises(sbus.Disconnected) as caught:
            client._link.send_nowait(b"MSG a\0")
        return str(caught.value)

    with anyio.fail_after(TIMEOUT_S):
        async with sbus.connect(bus.address) as client:
            assert "connect again" in in_child(use)
            await client.sync()
