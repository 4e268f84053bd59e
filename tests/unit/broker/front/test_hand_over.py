"""Handing a bus over: until the commit everything can be undone, and then nothing is."""

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from sbus.broker.front.hand_over import HandOver, HandOverResult
from sbus.broker.front.worker_rounds import WorkerRounds
from sbus.broker.ipc import upgrade_link
from sbus.broker.ipc.bus_record import BusRecord
from sbus.broker.ipc.upgrade_link import (
    Abort,
    Adopted,
    Commit,
    Failed,
    FromNew,
    FromOld,
    Hello,
    Offer,
    Prepared,
    Ready,
    RecordOfBus,
    RecordsOfClients,
    Serving,
    UpgradeFailed,
)
from sbus.broker.ipc.worker_protocol import Done, Freeze, RecordClients, WorkerCommand
from sbus.unix.fd_passing import DescriptorsLost

OFFER = Offer(
    has_admin_listener=False,
    has_pidfile=False,
    has_remover=False,
    is_inherited=False,
    dialect="slash",
    files=[],
    owner=(0, 0, ()),
)
READY = (Hello(program="9.9", pid=77), Ready(), Prepared(), Adopted())
"""What a new program says that takes over, up to the commit."""


class Parts:
    """Of an old bus with one worker, which answers at once; what it did, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.rounds = WorkerRounds(cast(Any, self))
        self.is_replaced = True
        self.is_ending = False
        self.dies_when_frozen = False
        self.error: Exception | None = None

    # -- as the supervisor
    def ended_workers(self) -> list[int]:
        return []

    def running_workers(self) -> list[int]:
        return [0]

    def send(self, worker: int, command: WorkerCommand, _fd: int | None = None) -> None:
        self.done.append(type(command).__name__)
        if isinstance(command, Freeze | RecordClients):
            self.rounds.on_done(worker, Done(command.number))
        if isinstance(command, Freeze) and self.dies_when_frozen:
            self.rounds.on_worker_death(worker)

    def stop_replacing(self) -> None:
        self.done.append("stop replacing")

    async def wait_for_successors(self) -> None:
        if not self.is_replaced:
            await trio.sleep_forever()

    # -- as the acceptor
    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")

    def leave_waiting(self) -> None:
        self.done.append("leave waiting")

    # -- as the mover
    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        yield

    # -- as the recorder
    def record(self) -> BusRecord:
        if self.error is not None:
            raise self.error
        return BusRecord()

    def clients(self) -> list[object]:
        return []

    def waiting(self) -> list[socket.socket]:
        return []


class Scene:
    """An old bus, and the end of its link that a new program has."""

    def __init__(self) -> None:
        self.parts = Parts()
        whole = cast(Any, self.parts)
        self.hand_over = HandOver(whole, self.parts.rounds, whole, whole, whole, whole)
        self.link, self.sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (self.link, self.sock):
            sock.setblocking(False)

    async def run(self, *said: FromNew) -> HandOverResult:
        """Hand over to a program that has said this."""
        for message in said:
            upgrade_link.send(self.sock, message)
        with trio.fail_after(60):
            return await self.hand_over.run(self.link, OFFER, [], self._commit)

    def _commit(self) -> None:
        self.parts.done.append("commit")

    def heard(self) -> list[FromOld]:
        """What the old bus has said."""
        messages: list[FromOld] = []
        try:
            while True:
                message, fds = upgrade_link.receive_from_old(self.sock)
                for fd in fds:
                    os.close(fd)
                if message is None:
                    return messages
                messages.append(message)
        except BlockingIOError:
            return messages

    def close(self) -> None:
        self.link.close()
        self.sock.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    opened = Scene()
    yield opened
    opened.close()


ALL_RECORDS = [RecordsOfClients(), RecordOfBus(is_final=False)]
ALL_FINAL_RECORDS = [RecordsOfClients(), RecordOfBus(is_final=True)]


async def test_a_bus_is_handed_over_in_steps(scene: Scene) -> None:
    result = await scene.run(*READY, Serving())
    assert (result.program, result.pid, result.clients) == ("9.9", 77, 0)
    assert scene.heard() == [OFFER, *ALL_RECORDS, *ALL_FINAL_RECORDS, Commit()]
    assert scene.parts.done == [
        "RecordClients",
        "pause",
        "Freeze",
        "RecordClients",
        "commit",
        "stop replacing",
        "leave waiting",
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_why_a_program_failed_that_reads_nothing_more_is_passed_on(
    scene: Scene, count: int
) -> None:
    for message in (*READY[:count], Failed("too few descriptors")):
        upgrade_link.send(scene.sock, message)
    upgrade_link.send(scene.link, Abort("unread"))
    scene.sock.close()
    with pytest.raises(UpgradeFailed, match="too few descriptors"):
        await scene.run()


async def test_the_process_id_of_a_bus_that_is_slow_to_serve_is_known(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    for message in READY:
        upgrade_link.send(scene.sock, message)
    result = await scene.hand_over.run(scene.link, OFFER, [], lambda: None)
    assert result.pid == 77


BUG = "a bug of the old program: LookupError('text') (test_hand_over.py:"


@pytest.mark.parametrize(
    ("what", "value", "expected"),
    [
        ("error", LookupError("text"), BUG),
        ("error", DescriptorsLost(b""), "cannot hand over: descriptors were dropped on the way"),
        ("dies_when_frozen", True, "worker 0 died"),
        ("is_ending", True, "the old bus ends"),
    ],
)
async def test_any_error_before_the_commit_ends_the_hand_over(
    scene: Scene, what: str, value: object, expected: str
) -> None:
    setattr(scene.parts, what, value)
    with pytest.raises(UpgradeFailed) as failure:
        await scene.run(*READY)
    why = str(failure.value)
    assert why.startswith(expected)
    heard = scene.heard()
    assert heard[-1] == Abort(why)
    assert Commit() not in heard
    assert scene.parts.done[-2:] == ["Thaw", "resume"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (READY[:0], "the new program was not ready within 10 s"),
        (READY[:1], "the new program was not ready within 10 s"),
        (READY[:3], "did not take all clients over within 5 s"),
    ],
)
async def test_waits_for_the_new_program_are_bounded(
    scene: Scene, autojump_clock: trio.testing.MockClock, said: tuple[FromNew, ...], why: str
) -> None:
    for message in said:
        upgrade_link.send(scene.sock, message)
    with pytest.raises(UpgradeFailed, match=why):
        await scene.hand_over.run(scene.link, OFFER, [], lambda: None)
    assert scene.parts.done[-2:] == ["Thaw", "resume"]


async def test_the_wait_for_a_dead_workers_successor_is_bounded(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    scene.parts.is_replaced = False
    for message in READY:
        upgrade_link.send(scene.sock, message)
    with pytest.raises(UpgradeFailed, match="was not replaced within 10 s"):
        await scene.hand_over.run(scene.link, OFFER, [], lambda: None)
    assert scene.parts.done == ["Thaw", "resume"]
