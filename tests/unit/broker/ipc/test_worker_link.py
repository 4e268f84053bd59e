"""The link: commands and events with their descriptors, in order, however slow a side is."""

import errno
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import trio
import trio.testing

from sbus.broker.ipc.worker_link import WorkerLink, encode_packet, lost_command, send_event
from sbus.broker.ipc.worker_protocol import (
    AdoptClient,
    ApplySettings,
    DescribeClient,
    Quiesce,
    Stop,
    WorkerReady,
)
from sbus.unix.credentials import Credentials
from sbus.unix.fd_passing import DescriptorsLost
from tests.support.no_room import NoRoomSocket

SOON_SECONDS = 60.0
SOMEBODY = Credentials(gid=1, uid=2, pid=3)
Links = tuple[WorkerLink, WorkerLink]


def open_files() -> set[int]:
    gc.collect()  # other tests may have left files to the garbage collection
    return {
        int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
    }


@pytest.fixture
async def links(nursery: trio.Nursery) -> AsyncIterator[Links]:
    front, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    both = WorkerLink(front, nursery), WorkerLink(worker, nursery)
    yield both
    for link, sock in zip(both, (front, worker), strict=True):
        if sock.fileno() >= 0:
            link.close()


async def test_a_slow_side_gets_everything_in_order(links: Links) -> None:
    front, worker = links
    opened_before = open_files()
    for number in range(2000):
        if number % 500:
            front.send(DescribeClient(number))
        else:  # the number of the descriptor becomes that of the next file
            file = os.memfd_create(str(number))
            front.send(AdoptClient(number, SOMEBODY, 9), file)
            os.close(file)
    assert front.queued
    numbers: list[int] = []
    files: list[str] = []
    with trio.fail_after(SOON_SECONDS):
        while len(numbers) < 2000:
            await worker.wait()
            command, fds = worker.receive_command()
            assert isinstance(command, AdoptClient | DescribeClient)
            numbers.append(command.client)
            for fd in fds:
                files.append(os.readlink(f"/proc/self/fd/{fd}"))
                assert not os.get_inheritable(fd)
                os.close(fd)
        await front.wait_until_sent()
    assert numbers == list(range(2000))
    assert files == [f"/memfd:{number} (deleted)" for number in range(0, 2000, 500)]
    assert front.queued == 0
    assert open_files() == opened_before


async def test_what_the_kernel_has_no_room_for_is_sent_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    front, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    errors = (errno.ETOOMANYREFS, errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
    async with trio.open_nursery() as nursery:
        here = WorkerLink(NoRoomSocket.of(front, *errors), nursery)
        there = WorkerLink(worker, nursery)
        here.send(AdoptClient(1, SOMEBODY, 9), worker.fileno())
        here.send(Quiesce())
        assert here.queued == 2
        await here.wait_until_sent()
        received, (fd,) = there.receive_command()
        assert received == AdoptClient(1, SOMEBODY, 9)
        os.close(fd)
        assert there.receive_command() == (Quiesce(), [])
        here.close()
        there.close()


async def test_a_link_that_closes_keeps_no_copies(links: Links, nursery: trio.Nursery) -> None:
    front, _ = links
    opened_before = open_files()
    while front.queued < 3:
        front.send(ApplySettings(1), 0)
    assert len(open_files()) == len(opened_before) + 3
    waiting = trio.Event()

    async def wait() -> None:
        await front.wait_until_sent()
        waiting.set()

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert not waiting.is_set()
    own = front.fileno()
    front.close()
    assert open_files() == opened_before - {own}
    with trio.fail_after(SOON_SECONDS):
        await waiting.wait()


async def test_a_command_goes_without_its_descriptor_if_there_is_none_left_for_a_copy(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    front, worker = links

    def dup(_fd: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "dup", dup)
    sent = 0
    while not front.queued:
        sent += 1
        front.send(AdoptClient(sent, SOMEBODY, 9), 0)
    with trio.fail_after(SOON_SECONDS):
        for _ in range(sent - 1):
            await worker.wait()
            for fd in worker.receive_command()[1]:
                os.close(fd)
        await worker.wait()
        with pytest.raises(DescriptorsLost) as lost:
            worker.receive_command()
    assert lost_command(lost.value) == AdoptClient(sent, SOMEBODY, 9)


async def test_what_the_other_side_has_not_read_is_known(links: Links) -> None:
    front, worker = links
    assert not front.unread_bytes()
    for number in range(3):
        front.send(DescribeClient(number))
    unread = front.unread_bytes()
    assert 3 * 50 < unread < 3 * 2_000
    worker.receive_command()
    assert front.unread_bytes() == unread * 2 // 3


Receive = Callable[[Links], object]
NOTHING_MORE: list[tuple[str, Receive, object]] = [
    ("front", lambda links: links[1].receive_command(), (None, [])),
    ("worker", lambda links: links[0].receive_event(), None),
]


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize(("who", "receive", "expected"), NOTHING_MORE, ids=["front", "worker"])
async def test_the_other_sides_end_is_noticed(
    links: Links, unread: bool, who: str, receive: Receive, expected: object
) -> None:
    gone, left = links if who == "front" else links[::-1]
    if unread:
        left.send(WorkerReady())
    gone.close()
    assert receive(links) == expected
    left.send(WorkerReady())  # a packet to a side that has ended is no error


def test_an_event_before_there_is_a_link_is_dropped_for_a_front_that_has_ended() -> None:
    front, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with front, worker:
        send_event(worker, WorkerReady())
        assert front.recv(100) == encode_packet(WorkerReady())
        front.close()
        send_event(worker, WorkerReady())


async def test_closing_ends_a_queue_that_is_never_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, trio.fail_after(SOON_SECONDS):
        async with trio.open_nursery() as nursery:
            link = WorkerLink(ours, nursery)
            while not link.queued:
                link.send(Stop())
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks
            link.close()
    assert link.queued == 0
