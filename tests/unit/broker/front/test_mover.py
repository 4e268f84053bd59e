"""Moves of a client whose two workers may die at any point, with every message at its own pace.

Two models of workers stand for the real ones. Whatever dies when, in the end one living worker
serves the client and the front knows which, or the client is disconnected; and no living worker is
ready for a client that will not come.
"""

import random
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from sbus.broker.front import mover
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.mover import ClientMover, MoveEvent
from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.client_record import ClientRecord
from sbus.shared.accounts import Account
from sbus.unix.credentials import Credentials
from sbus.unix.fd_passing import dup_socket
from tests.support.events import logging_to
from tests.unit.shared.memories import spare_slots

SOURCE, TARGET = 0, 1
CLIENT = 1
CREDENTIALS = Credentials(gid=1, uid=2, pid=3)


class WorkerModel:
    """What a worker does about one client."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self.number = number
        self.is_serving = True
        self.serves_client = False
        self.is_prepared = False
        self.commands: deque[protocol.WorkerCommand] = deque()
        self.events: deque[MoveEvent] = deque()

    def carry_out(self, command: protocol.WorkerCommand) -> None:
        match command:
            case protocol.DescribeClient():
                described = protocol.ClientDescribed(CLIENT, ClientRecord(revision=7))
                self._answer(described, if_serving=True)
            case protocol.PrepareClient():
                if self._world.chance.random() < 0.1:
                    self._decline()
                else:
                    self.is_prepared = True
                    self.events.append(protocol.ClientPrepared(CLIENT))
            case protocol.HandOverClient(to=to, revision=7):
                target = self._world.workers[to]
                if self.serves_client and target.is_serving and self._world.chance.random() < 0.9:
                    self.serves_client = False
                    self._world.log.append(target)
                    self.events.append(protocol.ClientHandedOver(CLIENT))
                else:
                    self._decline()
            case protocol.CallOffMove():
                self.walk()
                if self.is_prepared:
                    self.is_prepared = False
                    self.events.append(protocol.MoveCalledOff(CLIENT))
            case _:
                raise AssertionError(command)

    def _answer(self, event: MoveEvent, *, if_serving: bool) -> None:
        if self.serves_client == if_serving:
            self.events.append(event)
        else:
            self._decline()

    def _decline(self) -> None:
        self.events.append(protocol.MoveDeclined(CLIENT, "no"))

    def walk(self) -> None:
        """Take over the client where the log says so, if this worker is prepared for it."""
        while self in self._world.log:
            self._world.log.remove(self)
            if self.is_prepared:
                self.is_prepared, self.serves_client = False, True
                self.events.append(protocol.ClientArrived(CLIENT))


class World:
    """The front's mover, two workers and a client. Stands in for the supervisor, the acceptor and
    the departure of clients."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.chance = random.Random(seed)
        self.nursery = nursery
        self.log: list[WorkerModel] = []
        self.workers = [WorkerModel(self, number) for number in (SOURCE, TARGET)]
        self.workers[SOURCE].serves_client = True
        self.registry = ClientRegistry(2, spare_slots())
        own = cast("Any", self)
        self.mover = ClientMover(nursery, own, own, self.registry, own, logging_to([]))
        sock, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        account = Account(memoryview(bytearray(8 * 1_000)).cast("Q"), 0, 2, 0, 1)
        self.client = self.registry.add(SOURCE, sock, CREDENTIALS, account)
        self.copies = 0
        """Of the client's socket, in the front, besides that of the registry."""
        self.outcome: str | None = None

    def rules_for(self, _sock: socket.socket, _own: Credentials) -> int:
        return 0

    def send(self, worker: int, command: protocol.WorkerCommand, fd: int | None = None) -> None:
        assert (fd is not None) == isinstance(command, protocol.PrepareClient)
        if self.workers[worker].is_serving:
            self.workers[worker].commands.append(command)

    def disconnect(self, client: Client, reason: str, notice: bytes = b"") -> None:
        assert notice.startswith(b"CMSG !/error\0" + reason.encode())
        self._forget(client)

    def _forget(self, client: Client) -> None:
        self.registry.remove(client.number)
        client.sock.close()
        for worker in self.workers:
            worker.serves_client = False

    def copy_socket(self, client: Client) -> socket.socket:
        self.copies += 1
        return dup_socket(client.sock)

    def close_copy(self, _client: Client, copy: socket.socket) -> None:
        self.copies -= 1
        copy.close()

    def leave(self) -> None:
        """The client leaves the worker that serves it, which reports that."""
        for number, worker in enumerate(self.workers):
            if worker.serves_client and not worker.events:
                worker.serves_client = False
                if self.registry.get(CLIENT) is not None:
                    assert number == self.client.worker
                    self._forget(self.client)

    def kill(self, number: int) -> None:
        """A worker dies; what it has said is heard first, or is lost."""
        died = self.workers[number]
        if self.chance.random() < 0.5:
            while died.events:
                self.mover.on_event(number, died.events.popleft())
        successor = self.workers[number] = WorkerModel(self, number)
        successor.is_serving = False
        self.mover.on_worker_death(number)
        self.nursery.start_soon(self._succeed, successor)

    async def _succeed(self, successor: WorkerModel) -> None:
        """The successor of a dead worker begins, with the clients that this has left."""
        left_out = await self.mover.wait_for_decisions(successor.number)
        clients = self.registry.of_worker(successor.number)
        if self.workers[successor.number] is successor:
            successor.is_serving = True
            successor.serves_client = bool(clients) and clients != left_out

    def step(self) -> None:
        """Something happens next: a command or an event arrives, or a worker walks."""
        number = self.chance.choice((SOURCE, TARGET))
        worker = self.workers[number]
        what = self.chance.randrange(3)
        if what == 0 and worker.commands:
            worker.carry_out(worker.commands.popleft())
        elif what == 1 and worker.events:
            self.mover.on_event(number, worker.events.popleft())
        elif what == 2:
            worker.walk()
        if self.registry.get(CLIENT) is None and any(it.is_prepared for it in self.workers):
            assert self.copies, "a worker has the last copy"

    async def run_move(self) -> None:
        self.outcome = (await self.mover.move(self.client, TARGET)).why_not

    def check(self) -> None:
        serving = [n for n, worker in enumerate(self.workers) if worker.serves_client]
        connected = self.registry.get(CLIENT) is not None
        assert serving == ([self.client.worker] if connected else [])
        assert not any(worker.is_prepared for worker in self.workers)
        assert not self.copies
        assert self.registry.by_worker[1 - self.client.worker] == {}
        assert not self.outcome or self.client.worker == SOURCE


@asynccontextmanager
async def a_world(seed: int) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        world = World(seed, nursery)
        with world.peer, world.client.sock:
            yield world
            nursery.cancel_scope.cancel()


async def play(seed: int, kills: list[tuple[int, int]], leaves_at: int | None = None) -> World:
    """One move; `kills` are steps before which a worker dies."""
    async with a_world(seed) as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.run_move)
        steps = 0
        while world.outcome is None or any(
            it.commands or it.events or it in world.log or not it.is_serving for it in world.workers
        ):
            await trio.testing.wait_all_tasks_blocked()
            for at, victim in kills:
                if at == steps:
                    world.kill(victim)
            if steps == leaves_at:
                world.leave()
            world.step()
            steps += 1
            assert steps < 10_000, "the move does not end"
        await trio.testing.wait_all_tasks_blocked()
        world.check()
    return world


async def test_a_client_is_moved() -> None:
    outcomes = [(await play(seed, [])).outcome for seed in range(50)]
    assert set(outcomes) == {"", "no"}


VICTIMS = [(SOURCE,), (TARGET,), (SOURCE, TARGET), (TARGET, SOURCE), (TARGET, TARGET)]


async def survivors(victims: tuple[int, ...]) -> list[bool]:
    """Whether the client survived, for deaths at all points. About forty steps make a move."""
    survived = []
    for seed in range(8):
        for first in range(45):
            kills = [(first + 7 * number, victim) for number, victim in enumerate(victims)]
            world = await play(seed, kills)
            survived.append(world.registry.get(CLIENT) is not None)
    return survived


@pytest.mark.parametrize("victims", VICTIMS)
async def test_the_client_survives_workers_that_die_at_any_point(victims: tuple[int, ...]) -> None:
    assert all(await survivors(victims))


@pytest.mark.parametrize("victims", VICTIMS)
async def test_a_successor_that_cannot_wait_goes_without_the_client(
    victims: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "_DECISION_SECONDS_MAX", 0)
    survived = await survivors(victims)
    assert any(survived)
    assert not all(survived)


async def test_the_client_leaves_at_any_point() -> None:
    for seed in range(10):
        for at in range(45):
            await play(seed, [], leaves_at=at)
            await play(seed, [(at + 3, seed % 2)], leaves_at=at)


async def test_a_client_moves_once_at_a_time() -> None:
    async with a_world(0) as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.run_move)
        await trio.testing.wait_all_tasks_blocked()
        outcome = await world.mover.move(world.client, TARGET)
        assert outcome.why_not == "it is being moved"
        nursery.cancel_scope.cancel()


async def test_a_move_goes_on_when_nobody_waits_for_it() -> None:
    async with a_world(1) as world:
        with trio.move_on_after(0):
            await world.mover.move(world.client, TARGET)
        while world.mover.decides_about(world.client) or world.client.worker == SOURCE:
            world.step()
            await trio.testing.wait_all_tasks_blocked()
        world.check()


async def test_a_client_stays_where_it_is() -> None:
    async with a_world(0) as world:
        assert not (await world.mover.move(world.client, SOURCE)).why_not
        world.workers[TARGET].is_serving = False
        outcome = await world.mover.move(world.client, TARGET)
        assert outcome.why_not == "a worker does not serve"
        world.check()
