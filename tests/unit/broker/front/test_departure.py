"""A client that has left is forgotten."""

import socket
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

import pytest
import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.closer import Closer
from sbus.broker.front.departure import ClientDeparture
from sbus.limits import Limits
from sbus.protocol.controls import FloodControl
from sbus.shared.accounts import Account
from sbus.shared.client_slots import ClientSettings
from sbus.unix.credentials import Credentials
from sbus.unix.send_buffer import small_buffer_bytes
from tests.support.events import logging_to
from tests.unit.broker.front.fake_closer import ClosesAtOnce
from tests.unit.shared.memories import open_account, spare_slots


class Scene:
    """Clients of one user that leave; stands in for the acceptor and the shutdown as well."""

    def __init__(self, clients_max: int = 10) -> None:
        self.slots = spare_slots(clients_max)
        self.registry = ClientRegistry(1, self.slots)
        self.account = open_account(Limits())
        self.left: list[Account] = []
        self.client_left = self.left.append
        own, closer = cast("Any", self), cast(Closer, ClosesAtOnce())
        settings = BusSettings(workers=1)
        self.departure = ClientDeparture(own, self.registry, closer, own, settings, logging_to([]))

    def check_empty(self) -> None: ...

    def connect(self, wants_notices: bool | None = None) -> tuple[Client, socket.socket]:
        """A client, and its end of the connection; None if no worker has served it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        client = self.registry.add(0, ours, Credentials(gid=1, uid=1, pid=1), self.account)
        if wants_notices is not None:
            settings = ClientSettings(True, wants_notices, FloodControl())
            self.slots[client.slot].save(client.number, settings)
        return client, theirs


async def test_all_clients_are_disconnected_in_pieces(nursery: trio.Nursery) -> None:
    scene = Scene(100)
    clients = [scene.connect()[1] for _ in range(100)]
    left = []

    async def watch() -> None:
        while scene.registry:
            left.append(len(scene.registry))
            await trio.lowlevel.checkpoint()

    nursery.start_soon(watch)
    await scene.departure.disconnect_all("stopping")
    # Tasks that can run do so in any order.
    assert max(before - after for before, after in pairwise([*left, 0])) <= 64
    for client in clients:
        assert client.recv(1) == b""
        client.close()


def test_a_client_that_has_left_is_forgotten() -> None:
    scene = Scene()
    client, theirs = scene.connect()
    with theirs, client.sock.dup():
        scene.departure.forget(client.number, "")
        assert theirs.recv(1) == b"", "the connection has ended for every copy of the socket"
    assert client.sock.fileno() == -1
    assert scene.left == [scene.account]
    assert len(scene.registry) == 0


@pytest.mark.parametrize("wants_notices", [None, False, True])
def test_a_client_is_told_why_if_it_wants_notices(wants_notices: bool | None) -> None:
    scene = Scene()
    client, theirs = scene.connect(wants_notices)
    told = [b"notice"] if wants_notices else []
    with theirs:
        theirs.send(b"unread")
        scene.departure.disconnect(client, "why", b"notice")
        assert [theirs.recv(10) for _ in (*told, b"")] == [*told, b""]


def test_a_client_is_told_why_behind_a_full_small_buffer() -> None:
    scene = Scene()
    client, theirs = scene.connect(wants_notices=True)
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, small_buffer_bytes(Limits()))
    with theirs:
        with suppress(BlockingIOError):
            while client.sock.send(b"message"):
                pass
        scene.departure.disconnect(client, "why", b"notice")
        assert list(iter(lambda: theirs.recv(10), b""))[-1] == b"notice"


def test_the_slot_of_an_earlier_client_says_nothing_about_a_later_one() -> None:
    scene = Scene()
    earlier, theirs = scene.connect(wants_notices=True)
    with theirs, earlier.sock:
        scene.slots[earlier.slot].close()
        assert scene.registry.wants_notices(earlier)
        assert scene.registry.is_closed(earlier)
        scene.registry.remove(earlier.number)
        later, theirs_later = scene.connect()
        with theirs_later, later.sock:
            assert later.slot == earlier.slot
            assert not scene.registry.wants_notices(later)
            assert not scene.registry.is_closed(later)
