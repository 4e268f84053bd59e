"""The closer with real processes: it drops last references, and one that is stuck is replaced."""

import errno
import os
import select
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from sbus.bench.attacks.programs import lingering_pair
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front.closer import Closer
from sbus.broker.front.fork_server import ForkServer, WorkerExited, WorkerForked
from sbus.unix.bus_files import BusFiles
from tests.support.events import logging_to
from tests.support.no_room import NoRoomSocket

SOON_SECONDS = 60.0
USER, OTHER = 1, 2


class Scene:
    """A closer, and the fork server that it has its processes from."""

    def __init__(self, server: ForkServer) -> None:
        self.server = server
        self.lines: list[str] = []
        self.closer = Closer(server, LogRateLimiter(0, logging_to(self.lines)))
        self.pids: list[int] = []

    async def report(self) -> None:
        """Pass on what the fork server reports."""
        while True:
            await trio.lowlevel.wait_readable(self.server.sock)
            event = self.server.receive()
            assert isinstance(event, WorkerForked | WorkerExited)
            if isinstance(event, WorkerForked):
                self.pids.append(event.pid)
            self.closer.on_event(event)

    def kept(self) -> tuple[socket.socket, socket.socket]:
        """A connection's end that is kept, and the client's end."""
        ours, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.closer.keep(ours)
        return ours, client

    def leave_pipe(self, uid: int) -> int:
        """Close a connection with an unread packet that has the last descriptor of a pipe's end;
        the other end."""
        ours, client = self.kept()
        read_end, write_end = os.pipe()
        with client:
            socket.send_fds(client, [b"x"], [write_end])
        os.close(write_end)
        self.closer.close(ours, uid)
        return read_end

    def leave_lingering(self, uid: int) -> socket.socket:
        """The same with a socket that lingers while the returned one is open."""
        ours, client = self.kept()
        lingering, peer = lingering_pair()
        with client:
            socket.send_fds(client, [b"x"], [lingering.fileno()])
        lingering.close()
        self.closer.close(ours, uid)
        return peer


@asynccontextmanager
async def running_closer() -> AsyncIterator[Scene]:
    server = ForkServer(lambda *_: None, [], BusFiles(), logging_to([]))
    scene = Scene(server)
    try:
        with trio.fail_after(SOON_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(scene.report)
                nursery.start_soon(scene.closer.run)
                yield scene
                nursery.cancel_scope.cancel()
        scene.closer.end()
    finally:
        server.stop()


async def end_of(pipe: int) -> None:
    await trio.lowlevel.wait_readable(pipe)
    assert os.read(pipe, 1) == b""
    os.close(pipe)


async def test_a_stuck_closer_delays_nobody() -> None:
    async with running_closer() as scene:
        staying, client = scene.kept()
        with scene.leave_lingering(USER), client:
            await end_of(scene.leave_pipe(OTHER))
            await end_of(scene.leave_pipe(OTHER))
            first, *others = scene.pids
            assert others
            assert f"uid {USER} left takes too long, for process {first}" in scene.lines[0]
            client.send(b"x")
            assert staying.recv(10) == b"x"
            scene.closer.close(staying, USER)
            await trio.lowlevel.wait_readable(client)
            assert client.recv(1) == b""


async def test_what_the_same_user_leaves_waits_for_the_stuck_closer() -> None:
    async with running_closer() as scene:
        await end_of(scene.leave_pipe(OTHER))
        (stuck,) = scene.pids
        scene.closer._stuck[stuck] = USER
        pipe = scene.leave_pipe(USER)
        await end_of(scene.leave_pipe(OTHER))
        assert not select.select([pipe], [], [], 0)[0]
        scene.closer.on_event(WorkerExited(0, stuck, 0))
        await end_of(pipe)


async def test_a_kernel_without_room_delays_what_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_closer() as scene:
        fork, links = scene.server.fork_closer, []

        def fork_without_room() -> socket.socket:
            links.append(NoRoomSocket.of(fork(), errno.ETOOMANYREFS, errno.ENOMEM))
            return links[-1]

        monkeypatch.setattr(scene.server, "fork_closer", fork_without_room)
        await end_of(scene.leave_pipe(USER))
        ours, client = scene.kept()
        links[0].errors += [errno.ENOBUFS, errno.ENOBUFS]
        await end_of(scene.leave_pipe(USER))
        links[0].errors += [errno.ENOMEM, errno.ENOMEM]
        with client:
            scene.closer.close(ours, USER)
            await trio.lowlevel.wait_readable(client)
        await end_of(scene.leave_pipe(USER))
        assert not links[0].errors
        assert len(scene.pids) == 1
        assert not scene.lines


async def test_a_stuck_closer_is_replaced_while_the_kernel_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_closer() as scene:
        fork, links = scene.server.fork_closer, []

        def fork_noting_link() -> socket.socket:
            links.append(NoRoomSocket.of(fork()))
            return links[-1]

        monkeypatch.setattr(scene.server, "fork_closer", fork_noting_link)
        await end_of(scene.leave_pipe(OTHER))
        with scene.leave_lingering(USER):
            links[0].errors += [errno.ENOBUFS] * 1_000_000
            await end_of(scene.leave_pipe(OTHER))
            assert f"uid {USER} left takes too long, for process {scene.pids[0]}" in scene.lines[0]


async def test_a_dead_closer_is_replaced() -> None:
    async with running_closer() as scene:
        ours, client = scene.kept()
        await end_of(scene.leave_pipe(USER))
        pidfd = os.pidfd_open(scene.pids[0])
        os.kill(scene.pids[0], signal.SIGKILL)
        await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)
        with client:
            await end_of(scene.leave_pipe(USER))
            scene.closer.close(ours, USER)
            await trio.lowlevel.wait_readable(client)
            assert client.recv(1) == b""
        assert len(scene.pids) == 2


async def test_all_that_is_left_is_closed_at_the_end() -> None:
    async with running_closer() as scene:
        ours, client = scene.kept()
        await scene.closer.settle()
        scene.closer.close(ours, USER)
        assert ours.fileno() == -1
        client.send(b"the closer has it")
    client.settimeout(SOON_SECONDS)
    with client, suppress(ConnectionResetError):  # because of the unread packet
        assert client.recv(1) == b""
