"""The client library and `sbusctl` take names and watch them on a real bus."""

import json
import os
import subprocess

import anyio
import pytest

import sbus
from tests.broker.test_a_worker_dies import replace_worker
from tests.support.bus import SBUSCTL, Bus, sbusd_environment
from tests.support.event_loops import on_both_event_loops

TIMEOUT_S = 60.0


@on_both_event_loops
async def test_members_are_watched(bus: Bus) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with sbus.connect(bus.address) as watcher, sbus.connect(bus.address) as early:
            await early.join("worker-1")
            async with watcher.watch_members("*/worker-*") as watch:
                assert [member.name for member in watch.members()] == [b"worker-1"]
                async with sbus.connect(bus.address) as late:
                    await late.join("other")
                    await late.leave()
                    await late.join("worker-2", will=("gone", "x"))
                    joined = await watch.receive()
                    assert (joined.member.name, joined.reason) == (b"worker-2", None)
                    assert await watcher.members("*/worker-*") == watch.members()
                left = await watch.receive()
                assert (left.member, left.reason) == (joined.member, "left")
                assert [member.name for member in watch.members()] == [b"worker-1"]


def test_members_are_watched_without_an_event_loop(bus: Bus) -> None:
    with (
        sbus.blocking.connect(bus.address) as member,
        sbus.blocking.connect(bus.address) as other,
        other.watch_members(timeout_seconds=TIMEOUT_S) as watch,
    ):
        assert watch.members() == []
        member.join("a", timeout_seconds=TIMEOUT_S)
        assert watch.receive(timeout_seconds=TIMEOUT_S).reason is None
        with pytest.raises(sbus.PacketRefused, match="name-taken"):
            other.join("a", timeout_seconds=TIMEOUT_S)
        for worker in (0, 1):
            replace_worker(bus, worker)
        assert watch.members() == other.members(timeout_seconds=TIMEOUT_S)
        member.leave(timeout_seconds=TIMEOUT_S)
        assert watch.receive(timeout_seconds=TIMEOUT_S).reason == "gave-up"


def test_sbusctl_shows_members(bus: Bus) -> None:
    with sbus.blocking.connect(bus.address) as member:
        member.join("worker-1")
        shown = bus.sbusctl("members", "*/worker-*", "--json")
        (found,) = map(json.loads, shown.stdout.splitlines())
        assert (found["name"], found["pid"], found["uid"]) == (
            "worker-1",
            os.getpid(),
            os.geteuid(),
        )
        assert b"worker-1" in bus.sbusctl("members").stdout
        assert bus.sbusctl("members", "nobody").returncode != 0
        result = bus.sbusctl("members", "--count", "1")
        assert (result.returncode, result.stdout) == (2, b"")
        assert b"--count is for --watch" in result.stderr
        with subprocess.Popen(
            [*SBUSCTL, "-a", bus.address, "members", "--watch", "--json", "--count", "2"],
            stdout=subprocess.PIPE,
            env=sbusd_environment(),
        ) as watching:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["name"] == "worker-1"
            member.leave()
            assert json.loads(watching.stdout.readline())["reason"] == "gave-up"
            assert watching.wait(TIMEOUT_S) == 0
