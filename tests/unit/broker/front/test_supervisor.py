"""The supervisor with a fork server and workers whose lives and events the test decides."""

import errno
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import cast

import pytest
import trio
import trio.testing

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.fork_server import ForkServer, Pong, WorkerExited, WorkerForked
from sbus.broker.front.reaper import Reaper
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ApplySettings,
    ClientLeft,
    Quiesce,
    SettingsApplied,
    Stop,
    TookOver,
    WorkerCommand,
    WorkerEvent,
    WorkerQuiesced,
    WorkerReady,
)
from sbus.errors import SbusError
from sbus.limits import Limits
from sbus.shared.account_book import AccountBook
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import ALIVE, SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.unix.credentials import Credentials
from sbus.unix.notify import Notifier
from tests.support.events import logging_to
from tests.unit.broker.front.fake_worker import FakeWorker
from tests.unit.shared.memories import small_limits, was_woken

SOON_SECONDS = 5.0
WORKERS = 3


async def pass_time(seconds: float) -> None:
    """Of the test's clock."""
    await trio.sleep(seconds)


def pidfd_of_ended_process() -> int:
    with subprocess.Popen(["true"]) as child:
        return os.pidfd_open(child.pid)


class FakeForkServer:
    """Forks nothing; `workers` are the latest of each number."""

    def __init__(self) -> None:
        self.sock, self._bell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        self._events: deque[WorkerForked | WorkerExited | Pong] = deque()
        self.workers: dict[int, FakeWorker] = {}
        self.forks: list[int] = []
        self.answers = True

    def ping(self) -> None:
        if self.answers:
            self._emit(Pong())

    def fork_worker(self, worker: int) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.forks.append(worker)
        born = FakeWorker(1000 + len(self.forks), theirs)
        self.workers[worker] = born
        self._emit(WorkerForked(worker, born.pid, os.pidfd_open(os.getpid())))
        return ours

    def kill(self, worker: int, status: int = signal.SIGKILL) -> None:
        dead = self.workers[worker]
        dead.close()
        self._emit(WorkerExited(worker, dead.pid, status))

    def _emit(self, event: WorkerForked | WorkerExited | Pong) -> None:
        self._events.append(event)
        self._bell.send(b"x")

    def receive(self) -> WorkerForked | WorkerExited | Pong | None:
        if not self.sock.recv(1):
            return None
        return self._events.popleft()

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self._bell.close()
        self.sock.close()


class FakeNotifier(Notifier):
    """Records when the watchdog was fed."""

    def __init__(self) -> None:
        super().__init__()
        self.fed_at: list[float] = []

    def alive(self) -> None:
        self.fed_at.append(trio.current_time())


class Scene:
    """A supervisor, its fork server, and what it reported."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.memory = SharedMemory(WORKERS, small_limits())
        self.memory.lock.open()
        self.fork_server = FakeForkServer()
        self.worker_events: list[tuple[int, ClientLeft]] = []
        self.deaths: list[int] = []
        self.may_go_on = trio.Event()
        """What follows a death waits for this."""
        self.may_go_on.set()
        self.forks: list[int] = []
        self.lines: list[str] = []
        self.killed: list[int] = []
        self.memfds: list[int] = []
        self.notifier = FakeNotifier()
        settings = BusSettings(workers=WORKERS, limits=Limits(worker_silence_seconds_max=10.0))
        stalls = StallTable(self.memory.stalls, settings.limits.blocking_clients_max, None)
        self.book = AccountBook(self.memory.accounts, WORKERS, settings.limits)
        self.supervisor = Supervisor(
            cast(ForkServer, self.fork_server),
            self.memory,
            Reaper(self.memory, self.book, stalls),
            settings,
            logging_to(self.lines),
            self.notifier,
        )
        for worker in self.supervisor.workers:
            worker.kill = lambda number=worker.number: self.killed.append(number)  # type: ignore[method-assign, misc]

    def worker_forked(self, worker: int) -> None:
        self.forks.append(worker)

    def closer_event(self, event: WorkerForked | WorkerExited) -> None: ...

    def worker_event(self, worker: int, event: WorkerEvent) -> None:
        if isinstance(event, ClientLeft):
            self.worker_events.append((worker, event))

    async def worker_died(self, worker: int) -> None:
        await self.may_go_on.wait()
        self.deaths.append(worker)

    async def serve(self) -> None:
        """Start it, with every worker serving, and have it replace workers."""
        await self.start()
        self.supervisor.start_replacing()

    async def start(self) -> None:
        self.nursery.start_soon(self.supervisor.run, self.nursery, self)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(WORKERS):
            await self.send(number, WorkerReady())

    async def send(self, worker: int, event: WorkerEvent) -> None:
        self.fork_server.workers[worker].send(event)
        await trio.testing.wait_all_tasks_blocked()

    async def kill(self, worker: int, status: int = signal.SIGKILL) -> None:
        self.fork_server.kill(worker, status)
        await trio.testing.wait_all_tasks_blocked()

    def distribute(self, limits: Limits | None = None) -> None:
        """New settings, with these limits."""
        self.memfds.append(os.memfd_create("settings"))
        self.supervisor.distribute_settings(limits or Limits(), self.memfds[-1])

    def commands(self, worker: int) -> list[WorkerCommand]:
        return self.fork_server.workers[worker].commands()

    def close(self) -> None:
        self.nursery.cancel_scope.cancel()
        for worker in self.supervisor.workers:
            if worker.link is not None:
                worker.link.close()
            if worker.pidfd >= 0:
                os.close(worker.pidfd)
        if self.memfds:
            os.close(self.memfds[-1])  # the supervisor has closed the others
        self.fork_server.close()
        self.memory.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        opened = Scene(nursery)
        yield opened
        opened.close()


async def test_it_serves_once_every_worker_does(scene: Scene) -> None:
    done = trio.Event()

    async def run() -> None:
        await scene.supervisor.run(scene.nursery, scene)
        scene.supervisor.start_replacing()
        done.set()

    scene.nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    assert scene.fork_server.forks == [0, 1, 2]
    for number in (2, 0):
        await scene.send(number, WorkerReady())
        assert not done.is_set()
    await scene.send(1, WorkerReady())
    assert done.is_set()


async def test_a_replacement_can_be_delayed(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.start()
    scene.supervisor.delay_replacing()
    await scene.kill(1)
    await pass_time(SOON_SECONDS)
    assert scene.deaths == [1]
    assert scene.fork_server.forks == [0, 1, 2]
    scene.supervisor.start_replacing()
    await pass_time(SOON_SECONDS)
    assert scene.fork_server.forks == [0, 1, 2, 1]


@pytest.mark.parametrize("status", [1 << 8, signal.SIGSEGV], ids=["exit", "signal"])
async def test_a_worker_that_dies_at_the_start_ends_the_bus(status: int) -> None:
    with pytest.RaisesGroup(SbusError, allow_unwrapped=True, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            scene = Scene(nursery)
            try:
                nursery.start_soon(scene.supervisor.run, nursery, scene)
                await trio.testing.wait_all_tasks_blocked()
                await scene.send(0, WorkerReady())
                await scene.kill(1, status)
            finally:
                scene.close()


async def test_a_dead_worker_is_reaped_and_replaced(
    scene: Scene, autojump_clock: trio.testing.MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    await scene.serve()
    logs = [OrderedLog(scene.memory, number) for number in range(WORKERS)]
    with scene.memory.lock as words:
        for log in logs:
            log.start(words)
    await scene.kill(1)
    assert scene.deaths == [1]
    with scene.memory.lock as words:
        assert words[ALIVE] == 0b111, "the log keeps what is destined to it"
    assert all(was_woken(scene.memory, number) for number in range(WORKERS))
    await pass_time(SOON_SECONDS)
    assert scene.fork_server.forks == [0, 1, 2, 1]
    assert scene.deaths == [1]
    for alive in (0b111, 0b111, 0b101):  # the last successor comes late
        await scene.kill(1)
        await trio.testing.wait_all_tasks_blocked()
        with scene.memory.lock as words:
            assert words[ALIVE] == alive
        await pass_time(SOON_SECONDS)


async def test_a_worker_that_keeps_dying_early_is_forked_after_growing_delays(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.serve()

    async def pause() -> float:
        died_at, forks = trio.current_time(), len(scene.fork_server.forks)
        await scene.kill(2)
        while len(scene.fork_server.forks) == forks:
            await pass_time(0.05)
        return trio.current_time() - died_at

    pauses = [await pause() for _ in range(8)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 1
    assert 4 < pauses[-1] < 6
    scene.supervisor.workers[2].forked_at = -1e9  # it has lived long
    assert await pause() < pauses[0]
    assert 0 < await pause() < 1


async def test_without_descriptors_a_worker_is_replaced_later(
    scene: Scene, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers wait for it for a second at most."""
    await scene.serve()
    with scene.memory.lock as words:
        OrderedLog(scene.memory, 1).start(words)
    attempts_at = []
    socketpair = socket.socketpair

    def exhausted(family: int, kind: int) -> tuple[socket.socket, socket.socket]:
        attempts_at.append(trio.current_time())
        if len(attempts_at) < 6:
            code = errno.EMFILE if len(attempts_at) % 2 else errno.EAGAIN
            raise OSError(code, "no room")
        return socketpair(family, kind)

    monkeypatch.setattr(socket, "socketpair", exhausted)
    scene.supervisor.workers[1].forked_at = -1000.0  # it has lived long
    await scene.kill(1)
    await pass_time(1)
    with scene.memory.lock as words:
        assert not words[ALIVE]
    await pass_time(30)
    assert scene.fork_server.forks == [0, 1, 2, 1]
    assert attempts_at[-1] - attempts_at[0] > 0.5, "it asked again and again without a pause"
    assert "worker 1 cannot be started for now: Too many open files" in scene.lines


async def test_only_workers_that_serve_are_available(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    """A successor serves once it has taken over."""
    await scene.serve()
    assert await scene.supervisor.wait_for_available_workers() == [0, 1, 2]
    await scene.kill(1)
    assert await scene.supervisor.wait_for_available_workers() == [0, 2]
    await pass_time(SOON_SECONDS)
    assert scene.fork_server.forks[-1] == 1
    await scene.send(1, WorkerReady())
    assert await scene.supervisor.wait_for_available_workers() == [0, 2]
    await scene.send(1, TookOver(0))
    assert await scene.supervisor.wait_for_available_workers() == [0, 1, 2]


async def test_a_successor_is_waited_for_from_the_death_until_it_has_taken_over(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.serve()
    await scene.supervisor.wait_for_successors()
    waiting = trio.Event()

    async def wait() -> None:
        await scene.supervisor.wait_for_successors()
        waiting.set()

    scene.may_go_on = trio.Event()
    await scene.kill(1)
    scene.nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert not waiting.is_set()
    scene.may_go_on.set()
    await pass_time(SOON_SECONDS)
    await scene.send(1, WorkerReady())
    assert not waiting.is_set()
    await scene.send(1, TookOver(0))
    assert waiting.is_set()


async def test_answers_of_the_fork_server_and_other_deaths_do_not_wait_for_what_follows_a_death(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene.notifier.watchdog_seconds = 4.0
    await scene.serve()
    scene.may_go_on = trio.Event()
    await scene.kill(1)
    fed = len(scene.notifier.fed_at)
    await scene.kill(2)
    assert [worker.is_running for worker in scene.supervisor.workers] == [True, False, False]
    await pass_time(3)
    assert len(scene.notifier.fed_at) > fed


async def test_a_worker_has_ended_before_that_is_reported(scene: Scene) -> None:
    await scene.serve()
    assert scene.supervisor.ended_workers() == []
    worker = scene.supervisor.workers[1]
    os.close(worker.pidfd)
    worker.pidfd = pidfd_of_ended_process()
    assert scene.supervisor.ended_workers() == [1]
    await scene.kill(1)
    assert scene.supervisor.ended_workers() == []


async def test_a_worker_that_does_not_read_its_commands_gets_no_clients(scene: Scene) -> None:
    await scene.serve()
    credentials = Credentials(gid=1, uid=2, pid=3)
    read_end, write_end = os.pipe()
    link = scene.supervisor.workers[0].link
    assert link is not None
    for _ in range(Limits().handoff_clients_max):
        assert await scene.supervisor.wait_for_available_workers() == [0, 1, 2]
        scene.supervisor.send(0, AdoptClient(1, credentials, 1), write_end)
    assert await scene.supervisor.wait_for_available_workers() == [1, 2]
    assert scene.commands(0)
    link.close()  # before the descriptor that it has borrowed
    scene.supervisor.workers[0].link = None
    os.close(read_end)
    os.close(write_end)


async def test_all_workers_quiesce_before_any_stops(scene: Scene) -> None:
    await scene.serve()
    async with trio.open_nursery() as stopping:
        stopping.start_soon(scene.supervisor.stop, "draining")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(WORKERS):
            assert scene.commands(number) == [Quiesce()]
        await scene.send(0, WorkerQuiesced())
        await scene.send(1, WorkerQuiesced())
        assert scene.commands(0) == []
        await scene.send(2, WorkerQuiesced())
        for number in range(WORKERS):
            assert scene.commands(number) == [Stop("draining")]
            await scene.kill(number, 0)
    assert not scene.killed
    assert not scene.deaths, "a worker that stops when told to has not died"
    assert scene.fork_server.forks == [0, 1, 2]


async def test_a_worker_that_does_not_stop_in_time_is_killed(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    """That is, in the time that the newest settings give it."""
    await scene.serve()
    scene.distribute(Limits(stop_seconds_max=7))
    await scene.send(0, WorkerQuiesced())
    await scene.supervisor.stop("stopping")
    assert trio.current_time() == pytest.approx(7)
    assert sorted(scene.killed) == [0, 1, 2]


async def test_nothing_is_heard_of_clients_from_a_worker_that_did_not_stop_in_time(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    """The front ends their connections itself."""
    await scene.serve()
    worker = scene.fork_server.workers[0]
    scene.supervisor.workers[0].kill = lambda: worker.send(ClientLeft(1, "too late"))  # type: ignore[method-assign]
    await scene.supervisor.stop("stopping")
    await trio.testing.wait_all_tasks_blocked()
    assert scene.worker_events == []


@pytest.mark.parametrize(
    ("waiting", "killed"),
    [([], [2]), ([0], [2]), ([2], [1]), ([1, 2], [])],
    ids=["nobody", "one that is not silent", "the most silent one", "all silent ones"],
)
async def test_the_most_silent_worker_that_does_not_wait_for_the_lock_is_killed(
    scene: Scene,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    waiting: list[int],
    killed: list[int],
) -> None:
    """Waiting workers may recover when the lock is free; so one is killed at a time."""
    await scene.serve()
    silence = {0: 9.9, 1: 10.1, 2: 11.0}
    monkeypatch.setattr(scene.memory, "silence_seconds", silence.__getitem__)
    pids = {scene.fork_server.workers[number].pid for number in waiting}
    monkeypatch.setattr(scene.memory.lock, "waiters", lambda: pids)
    await pass_time(1.5 * Limits().heartbeat_seconds)
    assert scene.killed == killed


@pytest.mark.parametrize("watchdog_seconds", [0.5, 2.0, 10.0, 61.0])
async def test_the_watchdog_is_fed_twice_in_its_time(
    scene: Scene, autojump_clock: trio.testing.MockClock, watchdog_seconds: float
) -> None:
    scene.notifier.watchdog_seconds = watchdog_seconds
    begin = trio.current_time()
    await scene.serve()
    await pass_time(5 * watchdog_seconds)
    moments = [begin, *scene.notifier.fed_at]
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert (
        9
        <= len(scene.notifier.fed_at)
        <= 1
        + 5
        * watchdog_seconds
        / min(watchdog_seconds / 2, max(0.1, watchdog_seconds / 2 - Limits().heartbeat_seconds))
    )
    assert max(pauses) <= watchdog_seconds / 2 + 1e-6


async def test_the_watchdog_is_not_fed_while_the_fork_server_does_not_answer(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene.notifier.watchdog_seconds = 4.0
    await scene.serve()
    await pass_time(8.5)  # between two pings
    before = len(scene.notifier.fed_at)
    assert before
    scene.fork_server.answers = False
    await pass_time(100)
    assert len(scene.notifier.fed_at) == before


# -- settings --------------------------------------------------------------------------------------
async def test_workers_without_the_settings_in_time_are_named(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.serve()
    scene.distribute()
    await scene.send(1, SettingsApplied(1))
    assert await scene.supervisor.wait_until_settings_applied(5) == [0, 2]
    await scene.send(0, SettingsApplied(1))
    scene.supervisor.workers[2].forked_at = -1e9  # it has lived long, and is replaced at once
    await scene.kill(2)
    assert await scene.supervisor.wait_until_settings_applied(5) == []
    assert scene.commands(2) == [ApplySettings(1)], "its successor begins with them"


async def test_earlier_settings_do_not_count(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.serve()
    for _ in range(2):
        scene.distribute()
    for number in range(WORKERS):
        await scene.send(number, SettingsApplied(1))
    assert await scene.supervisor.wait_until_settings_applied(5) == [0, 1, 2]


async def test_earlier_settings_are_not_kept(scene: Scene) -> None:
    await scene.serve()
    scene.memfds = [os.memfd_create("settings") for _ in range(3)]
    for memfd in scene.memfds:
        scene.supervisor.distribute_settings(Limits(), memfd)
    *earlier, newest = scene.memfds
    os.fstat(newest)
    for closed in earlier:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(closed)
