"""The fork server with real processes: forks, exits with their statuses, and no orphans."""

import errno
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sbus.broker.front import fork_server
from sbus.broker.front.fork_server import ForkServer, Pong, WorkerExited, WorkerForked
from sbus.unix import fd_passing
from sbus.unix.bus_files import BusFiles
from tests.support.events import logging_to
from tests.support.no_room import NoRoomSocket
from tests.support.threads import wait_until

SOON_SECONDS = 60.0
Main = Callable[[int, socket.socket, bool], None]


def obey(number: int, link: socket.socket, is_first: bool) -> None:
    """A worker that does as the test says."""
    while True:
        word = link.recv(100)
        if word == b"number":
            link.send(b"%d" % number)
        elif word == b"is first":
            link.send(b"%d" % is_first)
        elif word == b"raise":
            raise RuntimeError("a bug")
        elif word == b"files":
            link.send(b"%d" % len(os.listdir("/proc/self/fd")))
        else:
            return


def stay(_number: int, _link: socket.socket, _is_first: bool) -> None:
    signal.pause()


@contextmanager
def running_server(main: Main) -> Iterator[ForkServer]:
    server = ForkServer(main, [], BusFiles(), logging_to([]))
    try:
        yield server
    finally:
        if server.sock.fileno() >= 0:
            server.stop()


def event(server: ForkServer) -> WorkerForked | WorkerExited | Pong | None:
    readable, _, _ = select.select([server.sock], [], [], SOON_SECONDS)
    assert readable, "the fork server said nothing"
    return server.receive()


def fork(server: ForkServer, number: int) -> tuple[WorkerForked, socket.socket]:
    ours = server.fork_worker(number)
    ours.settimeout(SOON_SECONDS)
    worker = event(server)
    assert isinstance(worker, WorkerForked)
    assert worker.worker == number
    return worker, ours


def has_ended(pidfd: int, timeout_seconds: float = SOON_SECONDS) -> bool:
    return bool(select.select([pidfd], [], [], timeout_seconds)[0])


def test_a_request_that_the_kernel_has_no_room_for_can_be_repeated() -> None:
    with running_server(obey) as server:
        server.sock = NoRoomSocket.of(server.sock, errno.ETOOMANYREFS, errno.ENOMEM)
        files = os.listdir("/proc/self/fd")
        with pytest.raises(BlockingIOError):
            server.fork_worker(3)
        assert os.listdir("/proc/self/fd") == files
        with pytest.raises(BlockingIOError):
            server.ping()
        worker, link = fork(server, 3)
        link.close()
        assert has_ended(worker.pidfd)
        os.close(worker.pidfd)


def test_a_worker_whose_pidfd_cannot_be_passed_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    send = fd_passing.send_borrowing_fds

    def without_room(sock: socket.socket, data: bytes, fds: list[int]) -> None:
        if fds and os.getpid() != front:
            raise BlockingIOError(errno.ETOOMANYREFS, "")
        send(sock, data, fds)

    front = os.getpid()
    monkeypatch.setattr(fork_server, "send_borrowing_fds", without_room)
    with running_server(stay) as server, server.fork_worker(3):
        forked = event(server)
        assert isinstance(forked, WorkerForked)
        assert forked.pidfd == -1
        assert event(server) == WorkerExited(3, forked.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("word", "status"), [(b"end", 0), (b"raise", 1)], ids=["returns", "raises"]
)
def test_the_exit_status_of_a_worker_is_reported(
    word: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with running_server(obey) as server:
        worker, link = fork(server, 1)
        with link:
            link.send(word)
            assert has_ended(worker.pidfd)
            exited = event(server)
        assert exited == WorkerExited(1, worker.pid, status << 8)
        os.close(worker.pidfd)
    assert ("RuntimeError: a bug" in capfd.readouterr().err) == (word == b"raise")


def test_a_worker_is_replaced_without_leaking_descriptors() -> None:
    with running_server(obey) as server:
        open_files = set()
        for _ in range(5):
            worker, link = fork(server, 2)
            with link:
                link.send(b"files")
                open_files.add(link.recv(100))
                link.send(b"end")
                assert isinstance(event(server), WorkerExited)
                os.close(worker.pidfd)
        assert len(open_files) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_only_the_front_decides_when_workers_end(number: signal.Signals) -> None:
    with running_server(obey) as server:
        worker, link = fork(server, 2)
        with link:
            signal.pidfd_send_signal(worker.pidfd, number)
            os.kill(server.pid, number)
            link.send(b"number")
            assert link.recv(100) == b"2"
            os.close(worker.pidfd)


class Killing:
    """Something that the fork server closes first, and that kills its front before it returns."""

    def __init__(self, front_pid: int) -> None:
        self._front = front_pid

    def close(self) -> None:
        os.kill(self._front, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{self._front}"), "the front is gone")


def test_a_front_that_is_gone_before_its_server_serves_is_no_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        front = os.fork()
        if front == 0:
            ForkServer(stay, [Killing(os.getpid())], BusFiles(), logging_to([]))
            signal.pause()
        theirs.close()
        os.waitpid(front, 0)
        ours.settimeout(SOON_SECONDS)
        assert ours.recv(1) == b"", "the fork server has ended, too"
    assert capfd.readouterr().err == ""


def test_a_ping_to_one_that_has_ended_is_no_error() -> None:
    with running_server(stay) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert event(server) is None
        server.ping()
        assert server.receive() is None
