"""The front's part of a stream: who was handed it, who has answered, and when it is forgotten."""

import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import NoReturn, cast

import pytest
import trio
import trio.testing

from sbus.broker.admin import stream_registry
from sbus.broker.admin.request_codec import AdminFault
from sbus.broker.admin.stream_registry import START_SECONDS_MAX, StreamRegistry
from sbus.broker.config.settings import BusSettings
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import StartStream, StreamStarted, WorkerCommand
from sbus.limits import Limits
from sbus.protocol import admin
from sbus.protocol.admin_results import MonitorResult
from sbus.protocol.events import AcceptingPaused
from tests.support.events import logging_to


class Scene:
    """Two workers, one watcher; stands in for the supervisor."""

    def __init__(self, nursery: trio.Nursery, watchers_max: int = 2) -> None:
        self.nursery = nursery
        self.workers = [0, 1]
        self.told: list[tuple[int, WorkerCommand]] = []
        self.events = logging_to([])
        settings = BusSettings(workers=2, limits=Limits(watchers_max=watchers_max))
        self.streams = StreamRegistry(nursery, cast(Supervisor, self), settings, self.events)
        self.server, self.watcher = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.watcher.setblocking(False)
        self.result: MonitorResult | None = None

    def running_workers(self) -> list[int]:
        return list(self.workers)

    def send(self, worker: int, command: WorkerCommand, fd: int | None = None) -> None:
        if fd is not None:
            os.fstat(fd)
        self.told.append((worker, command))

    async def begin(self, request: admin.Monitor | admin.Events) -> None:
        """Begin, as far as that goes without answers."""

        async def run() -> None:
            self.result = await self.streams.begin(request, self.server)

        self.nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()

    async def answer(self, worker: int, *, has_begun: bool = True) -> None:
        self.streams.on_started(worker, StreamStarted(1, has_begun))
        await trio.testing.wait_all_tasks_blocked()

    async def leave(self) -> None:
        self.watcher.close()
        await trio.testing.wait_all_tasks_blocked()

    def close(self) -> None:
        self.server.close()
        self.events.close()


@pytest.fixture
async def scene(nursery: trio.Nursery) -> AsyncIterator[Scene]:
    made = Scene(nursery)
    yield made
    await made.leave()
    made.close()


ALL = StartStream(1, "messages", [], False)


async def test_a_stream_has_begun_when_all_workers_have_it(scene: Scene) -> None:
    await scene.begin(admin.Monitor())
    assert scene.told == [(0, ALL), (1, ALL)]
    await scene.answer(0)
    assert scene.result is None
    await scene.answer(1)
    assert scene.result is not None
    assert scene.result.unanswered == []


async def test_a_worker_that_does_not_answer_delays_the_start_for_a_bounded_time(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    before = trio.current_time()
    await scene.begin(admin.Monitor())
    await scene.answer(1)
    await trio.sleep(START_SECONDS_MAX * 1.5)
    assert scene.result is not None
    assert scene.result.unanswered == [0]
    assert trio.current_time() - before < 2 * START_SECONDS_MAX


async def test_a_worker_that_cannot_have_it_is_named(scene: Scene) -> None:
    await scene.begin(admin.Monitor())
    await scene.answer(0)
    await scene.answer(1, has_begun=False)
    assert scene.result is not None
    assert scene.result.unanswered == [1]


async def test_a_worker_that_dies_is_not_waited_for(scene: Scene) -> None:
    await scene.begin(admin.Monitor())
    await scene.answer(0)
    scene.streams.on_worker_death(1)
    await trio.testing.wait_all_tasks_blocked()
    assert scene.result is not None


async def test_a_watcher_that_does_not_read_is_told_why_its_stream_ends(scene: Scene) -> None:
    await scene.begin(admin.Events())
    for worker in scene.workers:
        await scene.answer(worker)
    with suppress(BlockingIOError):
        while True:
            scene.server.send(b"x" * 500, socket.MSG_DONTWAIT)
    scene.streams.end_all("the reason")
    packets = list(iter(lambda: scene.watcher.recv(1_000), b""))
    assert b"the reason" in packets[-1]


async def test_packets_from_a_watcher_are_ignored(scene: Scene) -> None:
    await scene.begin(admin.Monitor())
    for packet in (b"HELLO", b"", b"x"):
        scene.watcher.send(packet)
        await trio.testing.wait_all_tasks_blocked()
    assert scene.told == [(0, ALL), (1, ALL)]


async def test_without_descriptors_a_stream_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_sock: socket.socket) -> NoReturn:
        raise OSError(errno.EMFILE, "too many open files")

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        monkeypatch.setattr(stream_registry, "dup_socket", fail)
        with pytest.raises(AdminFault, match="too many open files") as fault:
            await scene.streams.begin(admin.Monitor(), sock)
        assert fault.value.code == "failed"
    scene.streams.on_worker_forked(0)
    assert scene.told == [], "nothing is left of it"


async def test_the_front_writes_its_own_events(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene.workers = []
    await scene.streams.begin(admin.Events(), scene.server)
    scene.events.emit(AcceptingPaused(why="a path: \udcff"))
    await trio.sleep(1)
    packet = scene.watcher.recv(10_000)
    assert b'"event":"accepting-paused"' in packet
    assert b"a path: \\\\udcff" in packet
    await scene.leave()
    assert not scene.events.is_watched
