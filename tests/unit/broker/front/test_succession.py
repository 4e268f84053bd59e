"""What the front sends the successor of a worker that died, and which clients it blames."""

import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import trio
import trio.testing

from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.culprits import Culprits
from sbus.broker.front.succession import Succession
from sbus.broker.ipc.worker_protocol import InheritClient, TakeOver, WorkerCommand
from sbus.limits import Limits
from sbus.unix.credentials import Credentials
from tests.support.events import logging_to
from tests.unit.shared.memories import open_account, spare_slots

WORKERS = 2


class LinkModel:
    """A link whose other side may be slow."""

    def __init__(self) -> None:
        self.is_slow = False

    async def wait_until_sent(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_slow:
            await trio.sleep_forever()


class WorkerModel:
    """A worker of the supervisor's."""

    def __init__(self) -> None:
        self.link: LinkModel | None = LinkModel()
        self.age_seconds = 0.0


class World:
    """Clients of two workers; also a supervisor, a connection policy, a departure of clients and a
    shared memory."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.workers = [WorkerModel() for _ in range(WORKERS)]
        self.served_clients = [0] * WORKERS
        self.sent: list[WorkerCommand] = []
        self.lines: list[str] = []
        self.registry = ClientRegistry(WORKERS, spare_slots())
        own = cast("Any", self)
        events = logging_to(self.lines)
        culprits = Culprits(own, own, self.registry, own, events)
        self.succession = Succession(nursery, own, own, self.registry, culprits, events)
        self.peers: list[socket.socket] = []
        self.gone: dict[int, tuple[str, bytes]] = {}

    def rules_for(self, _sock: socket.socket, _own: Credentials) -> int:
        return 0

    def send(self, worker: int, command: WorkerCommand, fd: int | None = None) -> None:
        assert worker == 0
        if isinstance(command, InheritClient):
            assert fd == self.client(command.adoption.client).sock.fileno()
        self.sent.append(command)

    def disconnect(self, client: Client, reason: str, notice: bytes) -> None:
        self.gone[client.number] = (reason, notice)
        self.registry.remove(client.number)

    def client(self, number: int) -> Client:
        client = self.registry.get(number)
        assert client is not None
        return client

    def connect(self, worker: int = 0) -> Client:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peers += (ours, theirs)
        own = Credentials(gid=1, uid=2, pid=3)
        return self.registry.add(worker, ours, own, open_account(Limits()))

    async def replace(
        self,
        served: Client | None = None,
        *,
        left_out: tuple[Client, ...] = (),
        takes_over: bool = True,
    ) -> None:
        """The first worker dies while it serves this client, and has a successor, which takes over
        or does not."""
        self.sent.clear()
        self.served_clients[0] = served.number if served else 0
        self.succession.on_death(0)
        self.succession.leave_out(0, list(left_out))
        self.workers[0].link = LinkModel()
        self.succession.on_fork(0)
        await trio.testing.wait_all_tasks_blocked()
        if takes_over:
            self.succession.on_taken_over(0, len(self.sent) - 1)

    def inherited(self) -> list[int]:
        """The clients that were sent, in front of the command to take over."""
        *commands, last = self.sent
        assert last == TakeOver()
        found = []
        for command in commands:
            assert isinstance(command, InheritClient)
            found.append(command.adoption.client)
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        made = World(nursery)
        yield made
        nursery.cancel_scope.cancel()
    for sock in made.peers:
        sock.close()


async def test_a_client_that_another_worker_may_have_is_left_out(world: World) -> None:
    stays, moves = world.connect(0), world.connect(0)
    await world.replace(left_out=(moves,))
    assert world.inherited() == [stays.number]
    assert world.lines[-1].startswith("worker 0 serves 1 clients of its predecessor after ")


async def test_clients_that_leave_or_move_meanwhile_are_left_out(world: World) -> None:
    clients = [world.connect(0) for _ in range(200)]
    world.succession.on_death(0)
    world.succession.on_fork(0)
    world.registry.remove(clients[-1].number)
    world.registry.move(clients[-2], 1)
    await trio.testing.wait_all_tasks_blocked()
    assert world.inherited() == [client.number for client in clients[:-2]]


async def test_nothing_more_is_sent_when_the_successor_dies_too(world: World) -> None:
    for _ in range(200):
        world.connect(0)
    world.succession.on_death(0)
    world.succession.on_fork(0)
    world.workers[0].link = None
    await trio.testing.wait_all_tasks_blocked()
    assert TakeOver() not in world.sent


async def test_few_clients_wait_for_a_successor_that_is_slow(world: World) -> None:
    for _ in range(200):
        world.connect(0)
    assert world.workers[0].link is not None
    world.workers[0].link.is_slow = True
    world.succession.on_death(0)
    world.succession.on_fork(0)
    await trio.testing.wait_all_tasks_blocked()
    assert len(world.sent) == 50, "each may take one more descriptor"


# -- which clients are to blame --------------------------------------------------------------------
async def test_a_client_that_three_young_workers_served_is_disconnected(world: World) -> None:
    culprit, _neighbour = world.connect(), world.connect()
    for deaths in range(1, 4):
        assert not world.gone
        world.workers[0].age_seconds = 100.0 if deaths == 1 else 0.5
        await world.replace(culprit)
    notice = b"CMSG !/error\0kills-workers three workers died while they served this client"
    assert world.gone == {culprit.number: ("kills-workers", notice)}
    assert sum("kills-workers" in line for line in world.lines) == 1


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
    told = "worker 0: three successors died; its 50 clients are disconnected"
    assert world.lines.count(told) == 2
