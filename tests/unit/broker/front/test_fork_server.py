"""The template with real processes: births, deaths with their statuses, and no orphans."""

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sbus.broker.front.fork_server import Alive, ForkServer, WorkerExited, WorkerForked
from tests.support.events import logging_to

SOON_SECONDS = 10.0
Main = Callable[[int, socket.socket], None]


def obey(number: int, link: socket.socket) -> None:
    """A worker that does as the front says."""
    while True:
        order = link.recv(100)
        if order == b"number":
            link.send(b"%d" % number)
        elif order == b"raise":
            raise RuntimeError("a bug")
        elif order == b"files":
            link.send(b"%d" % len(os.listdir("/proc/self/fd")))
        elif order == b"name":
            with open("/proc/self/comm", "rb") as comm:
                link.send(comm.read().strip())
        else:
            return


def stay(_number: int, _link: socket.socket) -> None:
    signal.pause()


@contextmanager
def template_of(main: Main) -> Iterator[ForkServer]:
    template = ForkServer(main, [], logging_to([]))
    try:
        yield template
    finally:
        if template.sock.fileno() >= 0:
            template.stop()


def event(template: ForkServer) -> WorkerForked | WorkerExited | Alive | None:
    readable, _, _ = select.select([template.sock], [], [], SOON_SECONDS)
    assert readable, "the template said nothing"
    return template.receive()


def fork(template: ForkServer, number: int) -> tuple[WorkerForked, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    template.fork_worker(number, theirs)
    assert theirs.fileno() == -1
    ours.settimeout(SOON_SECONDS)
    birth = event(template)
    assert isinstance(birth, WorkerForked)
    assert birth.worker == number
    return birth, ours


def has_ended(pidfd: int, timeout_seconds: float = SOON_SECONDS) -> bool:
    return bool(select.select([pidfd], [], [], timeout_seconds)[0])


def test_a_worker_is_born_with_its_number_and_its_link() -> None:
    with template_of(obey) as template:
        births = [fork(template, number) for number in (3, 5)]
        for (birth, link), number in zip(births, (3, 5), strict=True):
            with link:
                link.send(b"number")
                assert link.recv(100) == b"%d" % number
                link.send(b"name")
                assert link.recv(100) == b"sbusd-worker-%d" % number
                signal.pidfd_send_signal(birth.pidfd, 0)
                os.close(birth.pidfd)


@pytest.mark.parametrize(
    ("order", "status"), [(b"end", 0), (b"raise", 1)], ids=["returns", "raises"]
)
def test_how_a_worker_ended_is_told(
    order: bytes, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with template_of(obey) as template:
        birth, link = fork(template, 1)
        with link:
            link.send(order)
            assert has_ended(birth.pidfd)
            death = event(template)
        assert death == WorkerExited(1, birth.pid, status << 8)
        os.close(birth.pidfd)
    assert ("RuntimeError: a bug" in capfd.readouterr().err) == (order == b"raise")


def test_a_worker_that_is_killed_is_told_with_its_signal() -> None:
    with template_of(stay) as template:
        birth, link = fork(template, 0)
        link.close()
        signal.pidfd_send_signal(birth.pidfd, signal.SIGKILL)
        death = event(template)
        assert isinstance(death, WorkerExited)
        assert os.waitstatus_to_exitcode(death.status) == -signal.SIGKILL
        os.close(birth.pidfd)


def test_a_slot_can_be_filled_again_without_leaking_descriptors() -> None:
    with template_of(obey) as template:
        open_files = set()
        for _ in range(5):
            birth, link = fork(template, 2)
            with link:
                link.send(b"files")
                open_files.add(link.recv(100))
                link.send(b"end")
                assert isinstance(event(template), WorkerExited)
                os.close(birth.pidfd)
        assert len(open_files) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_only_the_front_decides_when_workers_end(number: signal.Signals) -> None:
    with template_of(obey) as template:
        birth, link = fork(template, 2)
        with link:
            signal.pidfd_send_signal(birth.pidfd, number)
            os.kill(template.pid, number)
            link.send(b"number")
            assert link.recv(100) == b"2"
            os.close(birth.pidfd)


@pytest.mark.parametrize("read", [True, False], ids=["all read", "something unread"])
def test_no_worker_outlives_the_handle(read: bool) -> None:
    with template_of(stay) as template:
        births = [fork(template, number) for number in range(2)]
        if not read:
            signal.pidfd_send_signal(births[0][0].pidfd, signal.SIGKILL)
            select.select([template.sock], [], [], SOON_SECONDS)
        template.stop()
        for birth, link in births:
            assert has_ended(birth.pidfd, 0), "it had ended before stop() returned"
            os.close(birth.pidfd)
            link.close()


def test_the_end_of_the_template_is_noticed() -> None:
    with template_of(stay) as template:
        with pytest.raises(BlockingIOError):
            template.receive()
        os.kill(template.pid, signal.SIGKILL)
        assert event(template) is None


def test_the_template_keeps_nothing_that_it_was_told_to_close() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        template = ForkServer(stay, [theirs], logging_to([]))
        try:
            theirs.close()
            ours.settimeout(SOON_SECONDS)
            assert ours.recv(1) == b""
        finally:
            template.stop()


def test_it_answers_whoever_asks_whether_it_lives() -> None:
    with template_of(stay) as template:
        for _ in range(2):
            template.ask()
            assert event(template) == Alive()


def test_one_that_is_gone_is_asked_in_vain() -> None:
    with template_of(stay) as template:
        os.kill(template.pid, signal.SIGKILL)
        assert event(template) is None
        template.ask()
        assert template.receive() is None
