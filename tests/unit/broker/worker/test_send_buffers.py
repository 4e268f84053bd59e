"""Large send buffers: who gets one, what its user's account says, and when it is given back."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from sbus.broker.worker.send_buffers import SendBuffers
from sbus.limits import Limits
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import BUS, SOCKET_BYTES, Account
from sbus.unix.send_buffer import SMALL_BUFFER_BYTES, unread_bytes
from tests.unit.shared.memories import account_memory

LARGE = 100_000
MORE = 2 * (LARGE - SMALL_BUFFER_BYTES)
LIMITS = Limits(
    packet_bytes_max=1_000,
    socket_buffer_bytes=LARGE,
    user_backlog_bytes_max=3 * MORE,
    bus_backlog_bytes_max=8 * MORE,
)


class Scene:
    """Connections, and the accounts of two users."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.book = AccountBook(account_memory(1, LIMITS), 1, LIMITS)
        self.buffers = SendBuffers()

    def account(self, uid: int = 1) -> Account:
        account = self.book.of(uid, LIMITS.user, 0)
        assert account is not None
        return account

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """The ends of the bus, with a small buffer, and of the client."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        self._stack.enter_context(ours)
        self._stack.enter_context(theirs)
        return ours, theirs

    def enlarge(self, sock: socket.socket, uid: int = 1) -> bool:
        return self.buffers.enlarge(sock, self.account(uid), LIMITS)

    def used(self, uid: int = 1) -> int:
        return self.account(uid).use(SOCKET_BYTES)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack)


def size(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def fill(sock: socket.socket) -> None:
    with suppress(BlockingIOError):
        while True:
            sock.send(bytes(1_000))


def test_a_large_buffer_is_counted_until_it_is_released(scene: Scene) -> None:
    ours, _ = scene.connect()
    assert scene.enlarge(ours)
    assert size(ours) == 2 * LARGE
    assert scene.used() == scene.book[BUS].use(SOCKET_BYTES) == MORE
    assert not scene.enlarge(ours), "it is large already"
    scene.buffers.release(ours, scene.account())
    scene.buffers.release(ours, scene.account())
    assert size(ours) == 2 * SMALL_BUFFER_BYTES
    assert scene.used() == scene.book[BUS].use(SOCKET_BYTES) == 0


def test_a_large_buffer_becomes_small_once_its_content_would_fit(scene: Scene) -> None:
    ours, theirs = scene.connect()
    assert scene.enlarge(ours)
    fill(ours)
    scene.buffers.shrink_unused()
    assert size(ours) == 2 * LARGE
    for _ in range(40):
        theirs.recv(1_000)
    scene.buffers.shrink_unused()
    assert size(ours) == 2 * LARGE, "more than a small one takes is unread"
    for _ in range(40):
        theirs.recv(1_000)
    scene.buffers.shrink_unused()
    assert size(ours) == 2 * SMALL_BUFFER_BYTES
    assert scene.used() == 0
    assert scene.enlarge(ours), "it may have it again"


def test_a_user_has_room_for_as_much_as_in_backlogs(scene: Scene) -> None:
    socks = [scene.connect()[0] for _ in range(4)]
    for sock in socks[:3]:
        assert scene.enlarge(sock)
        fill(sock)
    assert not scene.enlarge(socks[3])
    assert size(socks[3]) == 2 * SMALL_BUFFER_BYTES
    assert scene.used() == 3 * MORE
    assert scene.enlarge(socks[3], uid=2), "another user has room of its own"


def test_buffers_that_are_not_needed_make_room_for_others(scene: Scene) -> None:
    (full, _), (unused, _), (also_full, _), (more, _) = (scene.connect() for _ in range(4))
    for sock in (full, unused, also_full):
        assert scene.enlarge(sock)
    fill(full)
    fill(also_full)
    assert scene.enlarge(more)
    assert [size(sock) // 2 for sock in (full, unused, also_full, more)] == [
        *(LARGE, SMALL_BUFFER_BYTES, LARGE, LARGE)
    ]
    assert scene.used() == 3 * MORE


def test_a_user_without_room_costs_no_second_look(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[socket.socket] = []

    def look_at(sock: socket.socket) -> int:
        looked_at.append(sock)
        return unread_bytes(sock)

    monkeypatch.setattr("sbus.broker.worker.send_buffers.unread_bytes", look_at)
    socks = [scene.connect()[0] for _ in range(4)]
    for sock in socks[:3]:
        assert scene.enlarge(sock)
        fill(sock)
    for _ in range(100):
        assert not scene.enlarge(socks[3])
    assert looked_at == socks[:3]
    scene.buffers.release(socks[0], scene.account())
    assert scene.enlarge(socks[3])
    fill(socks[3])
    assert not scene.enlarge(socks[0])
    scene.buffers.shrink_unused()
    looked_at.clear()
    assert not scene.enlarge(socks[0])
    assert looked_at, "once in a heartbeat"


def test_a_buffer_of_a_worker_that_has_ended_is_counted_if_it_is_large(scene: Scene) -> None:
    (small, _), *large = [scene.connect() for _ in range(5)]
    for ours, _ in large:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGE)
        fill(ours)
        scene.buffers.inherit(ours, scene.account(), LIMITS)
    scene.buffers.inherit(small, scene.account(), LIMITS)
    assert scene.used() == 4 * MORE, "there was room for three"
    assert not scene.enlarge(small)
    for ours, _ in large:
        scene.buffers.release(ours, scene.account())
    assert scene.used() == 0


def test_a_user_leaves_room_in_the_whole_bus_to_others(scene: Scene) -> None:
    for uid in (1, 2):
        for _ in range(3):
            sock = scene.connect()[0]
            fill(sock)
            scene.enlarge(sock, uid)
    assert scene.used(1) == 3 * MORE
    assert scene.used(2) == 2 * MORE, "with a third one it would have more than is left"
    sock = scene.connect()[0]
    assert scene.enlarge(sock, uid=3)


def test_no_buffer_is_enlarged_where_all_are_as_large_as_they_may_be(scene: Scene) -> None:
    ours, _ = scene.connect()
    limits = Limits(packet_bytes_max=1_000, socket_buffer_bytes=4_096)
    assert not scene.buffers.enlarge(ours, scene.account(), limits)
    assert scene.used() == 0
