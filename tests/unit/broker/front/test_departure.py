"""A client that has left is forgotten."""

import socket
from contextlib import suppress
from itertools import pairwise
from typing import cast

import pytest
import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.acceptor import Acceptor
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.closer import Closer
from sbus.broker.front.departure import ClientDeparture
from sbus.broker.front.shutdown import Shutdown
from sbus.limits import Limits
from sbus.protocol.controls import FloodControl
from sbus.shared.accounts import Account
from sbus.shared.client_slots import ClientSettings
from sbus.unix.credentials import Credentials
from sbus.unix.send_buffer import small_buffer_bytes
from tests.support.events import logging_to
from tests.unit.broker.front.fake_closer import ClosesAtOnce
from tests.unit.shared.memories import open_account, spare_slots


class Others:
    """An acceptor and a shutdown that are told of a departure."""

    def __init__(self) -> None:
        self.left: list[Account] = []
        self.client_left = self.left.append

    def check_empty(self) -> None: ...


async def test_all_clients_are_disconnected_in_pieces(nursery: trio.Nursery) -> None:
    account, registry, others = (
        open_account(Limits()),
        ClientRegistry(1, spare_slots(100)),
        Others(),
    )
    departure = departure_of(registry, others)
    clients = []
    for _ in range(100):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        registry.add(0, ours, Credentials(gid=1, uid=1, pid=1), account)
        clients.append(theirs)
    left = []

    async def watch() -> None:
        while registry:
            left.append(len(registry))
            await trio.lowlevel.checkpoint()

    nursery.start_soon(watch)
    await departure.disconnect_all("stopping")
    # Tasks that can run do so in any order.
    assert max(before - after for before, after in pairwise([*left, 0])) <= 64
    for client in clients:
        assert client.recv(1) == b""
        client.close()


def departure_of(registry: ClientRegistry, others: Others) -> ClientDeparture:
    return ClientDeparture(
        cast(Acceptor, others),
        registry,
        cast(Closer, ClosesAtOnce()),
        cast(Shutdown, others),
        BusSettings(workers=1),
        logging_to([]),
    )


def test_a_client_that_has_left_is_forgotten() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    account, registry, others = open_account(Limits()), ClientRegistry(1, spare_slots()), Others()
    departure = departure_of(registry, others)
    client = registry.add(0, ours, Credentials(gid=1, uid=1, pid=1), account)
    with theirs, ours.dup():
        departure.forget(client.number, "")
        assert theirs.recv(1) == b"", "the connection has ended for every copy of the socket"
    assert ours.fileno() == -1
    assert others.left == [account]
    assert len(registry) == 0


@pytest.mark.parametrize("wants_notices", [None, False, True])
def test_a_client_is_told_why_if_it_wants_notices(wants_notices: bool | None) -> None:
    """None: no worker has served it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    slots = spare_slots()
    registry = ClientRegistry(1, slots)
    client = registry.add(0, ours, Credentials(gid=1, uid=1, pid=1), open_account(Limits()))
    if wants_notices is not None:
        settings = ClientSettings(True, wants_notices, FloodControl())
        slots[client.slot].save(client.number, settings)
    told = [b"notice"] if wants_notices else []
    with theirs:
        theirs.send(b"unread")
        departure_of(registry, Others()).disconnect(client, "why", b"notice")
        assert [theirs.recv(10) for _ in (*told, b"")] == [*told, b""]


def test_a_client_is_told_why_behind_a_full_small_buffer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, small_buffer_bytes(Limits()))
    slots = spare_slots()
    registry = ClientRegistry(1, slots)
    client = registry.add(0, ours, Credentials(gid=1, uid=1, pid=1), open_account(Limits()))
    slots[client.slot].save(client.number, ClientSettings(True, True, FloodControl()))
    with theirs:
        with suppress(BlockingIOError):
            while ours.send(b"message"):
                pass
        departure_of(registry, Others()).disconnect(client, "why", b"notice")
        assert list(iter(lambda: theirs.recv(10), b""))[-1] == b"notice"


def test_the_slot_of_an_earlier_client_says_nothing_about_a_later_one() -> None:
    slots = spare_slots()
    registry = ClientRegistry(1, slots)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        own, account = Credentials(gid=1, uid=1, pid=1), open_account(Limits())
        earlier = registry.add(0, ours, own, account)
        slots[earlier.slot].save(earlier.number, ClientSettings(True, True, FloodControl()))
        slots[earlier.slot].close()
        assert registry.wants_notices(earlier)
        assert registry.is_closed(earlier)
        registry.remove(earlier.number)
        later = registry.add(0, ours, own, account)
        assert later.slot == earlier.slot
        assert not registry.wants_notices(later)
        assert not registry.is_closed(later)
