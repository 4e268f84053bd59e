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
    """Clients of two workers; also a supervisor, a connection policy and a shared memory."""

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

    def rules_for(self, _sock: socket.socket, _own: Credentials) -> int:
        return 0

    def send(self, worker: int, command: WorkerCommand, fd: int | None = None) -> None:
        assert worker == 0
        if isinstance(command, InheritClient):
            assert fd == self.client(command.adoption.client).sock.fileno()
        self.sent.append(command)

    def client(self, number: int) -> Client:
        client = self.registry.get(number)
        assert client is not None
        return client

    def connect(self, worker: int) -> Client:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.peers += (ours, theirs)
        own = Credentials(gid=1, uid=2, pid=3)
        return self.registry.add(worker, ours, own, open_account(Limits()))

    async def replace(self, left_out: tuple[Client, ...] = ()) -> None:
        """The first worker dies, and has a successor."""
        self.sent.clear()
        self.succession.on_death(0)
        self.succession.leave_out(0, list(left_out))
        self.workers[0].link = LinkModel()
        self.succession.on_fork(0)
        await trio.testing.wait_all_tasks_blocked()

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


async def test_the_successor_gets_all_clients_of_its_number(world: World) -> None:
    clients = [world.connect(number % 2) for number in range(250)]
    await world.replace()
    assert world.inherited() == [client.number for client in clients[::2]]


async def test_the_first_worker_of_a_number_gets_nothing(world: World) -> None:
    world.connect(0)
    world.succession.on_fork(0)
    await trio.testing.wait_all_tasks_blocked()
    assert world.sent == []


async def test_a_client_that_another_worker_may_have_is_left_out(world: World) -> None:
    stays, moves = world.connect(0), world.connect(0)
    await world.replace(left_out=(moves,))
    assert world.inherited() == [stays.number]


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


async def test_the_log_says_how_long_it_took(world: World) -> None:
    await world.replace()
    world.succession.on_taken_over(0, 12)
    (line,) = world.lines
    assert line.startswith("worker 0 serves 12 clients of its predecessor after ")
