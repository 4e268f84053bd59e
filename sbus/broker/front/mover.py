"""The mover: has another worker serve a client, unnoticed by the client and by others.

`worker.client_moves` describes what the two workers do. The front asks one after the other, and
does not wait for a worker that is dead.

    until it is handed over   the first worker serves the client, or its successor does
    from then on              the same is true of the second worker

When the first worker dies, the second one finds out from the log whether it has to serve the
client. When the second one dies, the first one says whether it has handed the client over. So the
clients of a dead worker are known when these answers have come, or a short time has passed: then
the client is disconnected. No client is served twice.
"""

import os
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio

from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.admission import adoption
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.connection_policy import ConnectionPolicy
from sbus.broker.front.departure import ClientDeparture
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc import worker_protocol as protocol
from sbus.protocol.controls import end_notice
from sbus.protocol.events import ClientMoved
from sbus.unix.errno_sets import OUT_OF_RESOURCES

_DECISION_SECONDS_MAX = 0.2
"""A client is handed over, or stays, within some 50 ms."""

MoveEvent = (
    protocol.ClientDescribed
    | protocol.ClientPrepared
    | protocol.ClientHandedOver
    | protocol.ClientArrived
    | protocol.MoveDeclined
    | protocol.MoveCalledOff
)


class _Move:
    """A move in progress, and what the two workers have said that was not looked at yet."""

    def __init__(self, client: Client, to: int) -> None:
        self.client = client
        self.source = client.worker
        self.to = to
        self.copy: socket.socket | None = None
        """Of the client's socket, once the other worker may have it. If the client leaves, that
        worker must not close the last one."""
        self.revision: int | None = None
        """Of the client as the other worker has prepared for it. From then on it may have been
        handed over when the front does not know that yet."""
        self.said: dict[int, deque[MoveEvent]] = {self.source: deque(), to: deque()}
        self.dead: set[int] = set()
        self.succeeded: set[int] = set()
        """Dead workers whose successors do not have this client."""
        self.changed = trio.lowlevel.ParkingLot()
        self.subscriptions = 0
        self.why_not = ""
        self.ended = trio.Event()

    async def wait(self, worker: int) -> MoveEvent | None:
        """What a worker says next; None if it has died."""
        while not self.said[worker] and worker not in self.dead:
            await self.changed.park()
        return self.said[worker].popleft() if self.said[worker] else None


class MoveOutcome(msgspec.Struct, frozen=True):
    """What came of a move."""

    why_not: str
    """Why the client was not moved; "" if it was."""
    subscriptions: int = 0
    """What had to be journalled for it."""


class ClientMover:
    """Of one bus. Runs tasks in `nursery`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        policy: ConnectionPolicy,
        supervisor: Supervisor,
        registry: ClientRegistry,
        departure: ClientDeparture,
        events: EventEmitter,
    ) -> None:
        self._nursery = nursery
        self._policy = policy
        self._supervisor = supervisor
        self._registry = registry
        self._departure = departure
        self._events = events
        self._moves: dict[int, _Move] = {}
        """By the numbers of the clients."""
        self._is_paused = False

    # -- what the workers say ------------------------------------------------------------------
    def on_event(self, worker: int, event: MoveEvent) -> None:
        move = self._moves[event.client]
        if isinstance(event, protocol.ClientArrived):
            self._arrived(move)
        move.said[worker].append(event)
        move.changed.unpark_all()

    def _arrived(self, move: _Move) -> None:
        self._registry.move(move.client, move.to)
        if self._events.is_watched:
            who = move.client.describe()
            self._events.emit(ClientMoved(who=who, source=move.source, worker=move.to))

    def on_worker_death(self, worker: int) -> None:
        for move in self._moves.values():
            move.dead.add(worker)
            move.changed.unpark_all()

    async def wait_for_decisions(self, worker: int) -> list[Client]:
        """Wait a short time until it is known which moving clients a dead worker has left; returns
        those about which it is not, which its successor will not have."""
        undecided = [
            move
            for move in self._moves.values()
            if worker in move.said and self.decides_about(move.client)
        ]
        with trio.move_on_after(_DECISION_SECONDS_MAX):
            for move in undecided:
                await move.ended.wait()
        left_out = [move for move in undecided if not move.ended.is_set()]
        for move in left_out:
            move.succeeded.add(worker)
        return [move.client for move in left_out]

    def decides_about(self, client: Client) -> bool:
        """Whether it is open which worker serves this client."""
        move = self._moves.get(client.number)
        return move is not None and move.revision is not None and client.worker == move.source

    def workers_of(self, client: Client) -> set[int]:
        """The worker that serves a client, and the one that may do so next."""
        move = self._moves.get(client.number)
        return {client.worker} if move is None else {client.worker, move.to}

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No client is on its way during the block."""
        self._is_paused = True
        try:
            for move in list(self._moves.values()):
                await move.ended.wait()
            yield
        finally:
            self._is_paused = False

    # -- moving --------------------------------------------------------------------------------
    async def move(self, client: Client, to: int) -> MoveOutcome:
        """Have worker `to` serve a client."""
        if client.worker == to:
            return MoveOutcome("")
        if self._is_paused:
            return MoveOutcome("another bus is to take the place of this one")
        if client.number in self._moves:
            return MoveOutcome("it is being moved")
        if not self._serve(client.worker, to):
            return MoveOutcome("a worker does not serve")
        move = self._moves[client.number] = _Move(client, to)
        # In a task of its own: it goes on when nobody waits for it any more.
        self._nursery.start_soon(self._carry_out, move)
        await move.ended.wait()
        return MoveOutcome(move.why_not, move.subscriptions)

    async def _carry_out(self, move: _Move) -> None:
        try:
            move.why_not = await self._prepare(move) or await self._hand_over(move)
        finally:
            if move.copy is not None:
                self._departure.close_copy(move.client, move.copy)
        del self._moves[move.client.number]
        move.ended.set()

    async def _prepare(self, move: _Move) -> str:
        """Have the other worker prepare for what the client's worker describes; why not."""
        described = await self._ask(move, move.source, protocol.DescribeClient(move.client.number))
        if not isinstance(described, protocol.ClientDescribed):
            return _why(described)
        if not self._is_connected(move.client):
            return "it has left"
        move.subscriptions = sum(described.record.patterns.values())
        try:
            move.copy = self._departure.copy_socket(move.client)
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES:
                raise
            return os.strerror(error.errno)
        preparation = protocol.PrepareClient(adoption(move.client, self._policy), described.record)
        prepared = await self._ask(move, move.to, preparation, move.copy.fileno())
        if not isinstance(prepared, protocol.ClientPrepared) or move.to in move.dead:
            return _why(prepared)
        move.revision = described.record.revision
        return ""

    async def _hand_over(self, move: _Move) -> str:
        """Have the client's worker hand it over, and find out which worker has it; why it was not
        moved."""
        number, revision = move.client.number, move.revision
        assert revision is not None
        command = protocol.HandOverClient(number, move.to, revision)
        answer = await self._ask(move, move.source, command)
        is_handed_over = isinstance(answer, protocol.ClientHandedOver)
        if is_handed_over:
            arrival = await move.wait(move.to)
        else:
            arrival = await self._ask(move, move.to, protocol.CallOffMove(number))
        if isinstance(arrival, protocol.ClientArrived):
            return ""
        # From here on the worker that has the client is dead, or the client is where it was.
        is_connected = self._is_connected(move.client)
        if is_handed_over and is_connected:
            self._arrived(move)
        if move.client.worker in move.succeeded and is_connected:
            self._departure.disconnect(move.client, "worker-died", end_notice("worker-died"))
        return "" if is_handed_over else _why(answer)

    async def _ask(
        self, move: _Move, worker: int, command: protocol.WorkerCommand, fd: int | None = None
    ) -> MoveEvent | None:
        """The answer of a worker; None if it has died since the move began, and maybe a successor
        has its number."""
        if worker not in move.dead:
            self._supervisor.send(worker, command, fd)
        return await move.wait(worker)

    def _serve(self, *workers: int) -> bool:
        return all(self._supervisor.workers[worker].is_serving for worker in workers)

    def _is_connected(self, client: Client) -> bool:
        return self._registry.get(client.number) is client


def _why(answer: MoveEvent | None) -> str:
    """Why a move ends with this answer of a worker."""
    return answer.why if isinstance(answer, protocol.MoveDeclined) else "a worker died"
