"""Which clients are disconnected because workers die of them, and which are not."""

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.culprits import Culprits
from sbus.limits import Limits
from sbus.unix.credentials import Credentials
from tests.support.events import logging_to
from tests.unit.shared.memories import open_account, spare_slots


class WorkerModel:
    """A worker of the supervisor's."""

    age_seconds = 0.0


class World:
    """Clients of one worker; also a supervisor, a departure of clients and a shared memory."""

    def __init__(self) -> None:
        self.workers = [WorkerModel()]
        self.served_clients = [0]
        self.lines: list[str] = []
        self.registry = ClientRegistry(1, spare_slots())
        own = cast("Any", self)
        self.culprits = Culprits(own, own, self.registry, own, logging_to(self.lines))
        self.gone: dict[int, tuple[str, bytes]] = {}
        self.sockets: list[socket.socket] = []

    def connect(self) -> Client:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sockets += (ours, theirs)
        own = Credentials(gid=1, uid=2, pid=3)
        return self.registry.add(0, ours, own, open_account(Limits()))

    def disconnect(self, client: Client, reason: str, notice: bytes) -> None:
        self.gone[client.number] = (reason, notice)
        self.registry.remove(client.number)

    async def replace(self, served: Client | None = None, *, takes_over: bool = True) -> None:
        """The worker dies while it serves this client, and its successor takes over or does not."""
        self.served_clients[0] = served.number if served else 0
        self.culprits.on_death(0)
        self.culprits.on_succession(0)
        await self.culprits.disconnect(0, self.registry.of_worker(0))
        if takes_over:
            self.culprits.on_taken_over(0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for sock in made.sockets:
        sock.close()


async def test_a_client_that_three_young_workers_served_is_disconnected(world: World) -> None:
    culprit, _neighbour = world.connect(), world.connect()
    for deaths in range(1, 4):
        assert not world.gone
        world.workers[0].age_seconds = 100.0 if deaths == 1 else 0.5
        await world.replace(culprit)
    notice = b"CMSG !/error\0kills-workers three workers died while they served this client"
    assert world.gone == {culprit.number: ("kills-workers", notice)}
    (line,) = world.lines
    assert "kills-workers" in line


async def test_a_client_that_three_successors_inherited_in_vain_is_disconnected(
    world: World,
) -> None:
    """A take-over may take so long that none of them was young."""
    culprit, _neighbour = world.connect(), world.connect()
    world.workers[0].age_seconds = 100.0
    await world.replace(takes_over=False)
    for _ in range(3):
        assert not world.gone
        await world.replace(culprit, takes_over=False)
    assert world.gone.keys() == {culprit.number}


async def test_a_client_that_workers_die_of_in_a_row_is_disconnected(world: World) -> None:
    """It may take its time."""
    culprit, neighbour = world.connect(), world.connect()
    world.workers[0].age_seconds = 50.0
    for _ in range(2):
        await world.replace(neighbour)
    for _ in range(3):
        assert not world.gone
        await world.replace(culprit)
    assert world.gone.keys() == {culprit.number}


async def test_late_deaths_with_others_between_them_are_no_fault(world: World) -> None:
    client, neighbour = world.connect(), world.connect()
    world.workers[0].age_seconds = 2.0
    for served in (client, client, neighbour, client, None) * 3:
        await world.replace(served)
    assert not world.gone


async def test_deaths_with_time_between_them_are_no_fault(world: World) -> None:
    client = world.connect()
    for deaths in range(10):
        world.workers[0].age_seconds = 0.5 if deaths % 2 else 100.0
        await world.replace(client)
    assert not world.gone


async def test_deaths_while_nobody_was_served_are_nobodys_fault(world: World) -> None:
    world.connect()
    for _ in range(5):
        await world.replace()
    assert not world.gone


async def test_when_three_successors_never_take_over_all_clients_are_disconnected(
    world: World,
) -> None:
    """The log says so once, and the next successors are tried as often."""
    for _ in range(2):
        clients = [world.connect() for _ in range(50)]
        await world.replace(takes_over=False)
        for _ in range(2):
            await world.replace(takes_over=False)
            assert len(world.registry) == 50
        await world.replace()
        assert not world.registry.of_worker(0)
        assert {world.gone[client.number][0] for client in clients} == {"worker-died"}
    assert len(world.lines) == 2
    assert "worker 0" in world.lines[0]
    assert "50 clients" in world.lines[0]
