"""The acceptor with its policy and rejector: which clients may connect, what the others are told,
and which failures are survived."""

import errno
import os
import socket
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from sbus.broker.config.access_policy import AccessRule, Permission
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front import rejector
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.administrators import Administrators
from sbus.broker.front.client_descriptors import ClientDescriptors
from sbus.broker.front.closer import Closer
from sbus.broker.front.connection_policy import ConnectionPolicy
from sbus.broker.front.connection_queue import AcceptedClient
from sbus.broker.front.rejector import Rejector
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.limits import Limits
from sbus.shared import account_book
from sbus.shared.account_book import AccountBook
from sbus.shared.client_slots import SLOTS_MAX
from sbus.unix.credentials import Credentials
from sbus.unix.send_buffer import SMALL_BUFFER_BYTES
from tests.support.events import logging_to
from tests.unit.broker.front.fake_closer import ClosesAtOnce
from tests.unit.shared.memories import account_memory, open_account

SOON_SECONDS = 60.0
ME = Credentials(gid=os.getegid(), uid=os.geteuid(), pid=os.getpid())
NOT_ME = os.geteuid() + 1


class Failing(socket.socket):
    """A listening socket whose next calls of accept fail."""

    failures: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            raise OSError(self.failures.pop(0), "accept failed")
        return super().accept()


class Scene:
    """An acceptor, its address, and what it complained about."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory / "acceptor")
        self.listener = Failing(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.failures = []
        self.listener.bind(self.address)
        self.listener.listen()
        self.lines: list[str] = []
        self.clients: list[socket.socket] = []

    def acceptor(self, **settings: object) -> Acceptor:
        bus = BusSettings(workers=1, **settings)  # type: ignore[arg-type]
        self.book = AccountBook(account_memory(1, bus.limits), 1, bus.limits)
        self.user_limits = user_limits = EffectiveUserLimits(bus, self.book)
        events = logging_to(self.lines)
        limiter = LogRateLimiter(10, events)
        descriptors = ClientDescriptors(1, SLOTS_MAX)
        self.policy = ConnectionPolicy(bus, user_limits, descriptors, Administrators(()))
        closer = cast(Closer, ClosesAtOnce())
        self.rejector = Rejector(bus, user_limits, closer, limiter, events)
        return Acceptor(self.listener, bus, self.policy, self.rejector, closer, limiter)

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(SOON_SECONDS)
        client.connect(self.address)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for sock in (self.listener, *self.clients):
            sock.close()


async def next_client(acceptor: Acceptor) -> AcceptedClient:
    """The next client that is admitted; the acceptor runs until then."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        await acceptor.wait_for_client()
        client = acceptor.next_client()
        nursery.cancel_scope.cancel()
    assert client is not None
    return client


async def reject_all(acceptor: Acceptor) -> None:
    """Let the acceptor look at all who connect; it admits nobody."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        await trio.testing.wait_all_tasks_blocked()
        assert acceptor.next_client() is None
        nursery.cancel_scope.cancel()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    opened = Scene(tmp_path)
    yield opened
    opened.close()


async def test_an_admitted_user_connects(scene: Scene) -> None:
    acceptor = scene.acceptor()
    client = scene.connect()
    with trio.fail_after(SOON_SECONDS):
        admitted = await next_client(acceptor)
    with admitted.sock as sock:
        assert admitted.credentials == ME
        assert scene.policy.rules_for(admitted.sock, ME) == 0
        assert admitted.account is scene.book.of(ME.uid, Limits().user, 0)
        assert admitted.account.connections == 1
        assert not sock.getblocking()
        buffer_bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert buffer_bytes == 2 * SMALL_BUFFER_BYTES
        sock.send(b"x" * 1_000)
        assert len(client.recv(1_000_000)) == 1_000
    assert not scene.lines


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EINTR, errno.EPERM, errno.EPROTO])
async def test_a_connection_that_failed_is_skipped(scene: Scene, code: int) -> None:
    acceptor = scene.acceptor()
    scene.listener.failures = [code]
    scene.connect()
    with trio.fail_after(SOON_SECONDS):
        (await next_client(acceptor)).sock.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_without_descriptors_it_waits_until_a_client_leaves(
    scene: Scene, mock_clock: trio.testing.MockClock, code: int
) -> None:
    acceptor = scene.acceptor()
    scene.listener.failures = [code]
    scene.connect()
    async with trio.open_nursery() as nursery:

        async def enter() -> None:
            (await next_client(acceptor)).sock.close()

        nursery.start_soon(enter)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks, "it did not wait"
        assert "cannot accept" in scene.lines[0]
        leaver = open_account(Limits())
        leaver.count_connection(1)
        acceptor.client_left(leaver)
        assert leaver.connections == 0


async def test_without_descriptors_it_tries_again_after_a_moment(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    acceptor = scene.acceptor()
    scene.listener.failures = [errno.EMFILE] * 3
    scene.connect()
    (await next_client(acceptor)).sock.close()
    assert 0 < trio.current_time() < 5
    assert len(scene.lines) == 1


async def test_an_error_of_the_listener_is_not_survived(scene: Scene) -> None:
    acceptor = scene.acceptor()
    scene.listener.failures = [errno.EINVAL]
    with pytest.raises(OSError, match="accept failed"):
        await acceptor.run()


@pytest.mark.parametrize(
    ("dialect", "told"),
    [("slash", [b"CMSG !/error\0stopping the bus ends, or is restarted", b""]), ("dot", [b""])],
)
async def test_who_waits_for_admission_when_the_bus_ends_is_told_so(
    scene: Scene, dialect: str, told: list[bytes]
) -> None:
    acceptor = scene.acceptor(dialect=dialect)
    clients = [scene.connect() for _ in range(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        await acceptor.wait_for_client()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    for client in clients:
        assert [client.recv(1000) for _ in told] == told
    assert not scene.lines


# -- access rules ----------------------------------------------------------------------------------


MY_PROGRAM = Path("/proc/self/comm").read_text().strip()
NOBODY_CONNECTS = AccessRule(
    allows=False, permissions=frozenset({Permission.CONNECT}), uids=frozenset(), gids=frozenset()
)


async def rejected(acceptor: Acceptor, client: socket.socket) -> list[bytes]:
    """What a client that may not connect is sent before the end."""
    packets = []
    await reject_all(acceptor)
    while packet := client.recv(1000):
        packets.append(packet)
    return packets


async def test_a_client_of_the_dot_dialect_is_not_told_why(scene: Scene) -> None:
    acceptor = scene.acceptor(rules=(NOBODY_CONNECTS,), dialect="dot")
    client = scene.connect()
    assert await rejected(acceptor, client) == []
    assert scene.rejector.refused == {"not-admitted": 1}


@pytest.fixture
def strange_name() -> Iterator[None]:
    """Of this process."""
    comm = Path("/proc/self/comm")
    comm.write_bytes(b"a\n\x1b\\\xff")
    yield
    comm.write_text(MY_PROGRAM)


@pytest.mark.usefixtures("strange_name")
async def test_names_of_programs_are_escaped(scene: Scene) -> None:
    acceptor = scene.acceptor(rules=(NOBODY_CONNECTS,))
    await rejected(acceptor, scene.connect())
    assert r"(a\x0a\x1b\\\xff)" in scene.lines[0]


async def test_telling_a_user_that_is_refused_all_the_time_costs_so_much_in_a_second(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor = scene.acceptor(admit_uids=frozenset({NOT_ME}))
    clients = [scene.connect() for _ in range(5)]
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    spent = count(0, rejector._TELLING_NS_MAX // 3 + 1)
    monkeypatch.setattr("time.thread_time_ns", lambda: next(spent))
    await reject_all(acceptor)
    told = [client.recv(1000).startswith(b"CMSG !/error\0not-admitted ") for client in clients]
    assert told == [True, True, True, False, False]
    now += 1.1
    again = scene.connect()
    await reject_all(acceptor)
    assert again.recv(1000)
    assert scene.rejector.refused == {"not-admitted": 6}


async def test_a_user_is_told_no_more_until_the_listen_queue_has_been_empty(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes a front without a processor to get there."""
    acceptor = scene.acceptor(admit_uids=frozenset({NOT_ME}))
    clients = [scene.connect() for _ in range(20)]
    seconds = count(100.0, 1.1)
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    spent = count(0, rejector._TELLING_NS_MAX // 3 + 1)
    monkeypatch.setattr("time.thread_time_ns", lambda: next(spent))
    await reject_all(acceptor)
    told = [client.recv(1000) for client in clients]
    assert [bool(packet) for packet in told] == [True] * 3 + [False] * 17
    again = scene.connect()
    await reject_all(acceptor)
    assert again.recv(1000)
    assert scene.rejector.refused == {"not-admitted": 21}


async def test_refusals_of_subordinate_ids_are_those_of_their_owner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor = scene.acceptor(admit_uids=frozenset({NOT_ME}))
    monkeypatch.setattr(scene.user_limits, "user_of", {ME.uid: 7, ME.uid + 2: 7}.get)
    for uid in (ME.uid, ME.uid + 2):
        own = Credentials(gid=ME.gid, uid=uid, pid=ME.pid)
        monkeypatch.setattr("sbus.broker.front.acceptor.peer_credentials", lambda _, own=own: own)
        scene.connect()
        await reject_all(acceptor)
    assert len(scene.lines) == 1
    assert scene.rejector.refused == {"not-admitted": 2}
    assert list(scene.rejector._told) == [7]


async def test_a_turn_ends_after_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    acceptor = scene.acceptor(admit_uids=frozenset({NOT_ME}))
    for _ in range(5):
        scene.connect()
    now = count(0.0, 0.002)
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    refused: list[int] = []

    async def watch() -> None:
        while len(refused) < 5:
            refused.append(scene.rejector.refused["not-admitted"])
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        await watch()
        nursery.cancel_scope.cancel()
    # Tasks that can run do so in any order.
    assert max(after - before for before, after in pairwise(refused)) <= 2


async def test_when_others_have_all_accounts_a_user_is_told_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_book, "_SEARCH_INTERVAL_NS", 0)
    acceptor = scene.acceptor(limits=Limits(users_max=1))
    other = scene.book.of(NOT_ME, Limits().user, 0)
    assert other is not None
    other.count_connection(1)
    client = scene.connect()
    await reject_all(acceptor)
    assert client.recv(1000).startswith(b"CMSG !/error\0too-many-users ")
    assert client.recv(1000) == b""
    (line,) = scene.lines
    assert "users_max" in line
    other.count_connection(-1)
    scene.connect()
    with trio.fail_after(SOON_SECONDS):
        admitted = await next_client(acceptor)
    admitted.sock.close()
    assert admitted.account.connections == 1


async def test_a_pause_leaves_new_connections_in_the_listen_queue(scene: Scene) -> None:
    acceptor = scene.acceptor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        scene.connect()
        await trio.testing.wait_all_tasks_blocked()
        assert len(acceptor.waiting()) == 1
        acceptor.pause()
        scene.connect()
        await trio.testing.wait_all_tasks_blocked()
        assert acceptor.next_client() is None
        assert len(acceptor.waiting()) == 1
        acceptor.resume()
        await trio.testing.wait_all_tasks_blocked()
        assert len(acceptor.waiting()) == 2
        for _ in range(2):
            client = acceptor.next_client()
            assert client is not None
            client.sock.close()
        nursery.cancel_scope.cancel()


async def test_connections_that_another_bus_has_are_not_ended(scene: Scene) -> None:
    acceptor = scene.acceptor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        client = scene.connect()
        await trio.testing.wait_all_tasks_blocked()
        (copy,) = [sock.dup() for sock in acceptor.waiting()]
        acceptor.pause()
        acceptor.leave_waiting()
        nursery.cancel_scope.cancel()
    with copy:
        copy.send(b"still open")
        assert client.recv(100) == b"still open"
