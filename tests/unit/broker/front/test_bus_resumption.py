"""What a front finds of a bus whose processes have died, and which workers get its clients."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.bus_resumption import BusResumption
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.reaper import Reaper
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.limits import Limits
from sbus.protocol.controls import FloodControl
from sbus.shared.account_book import AccountBook
from sbus.shared.client_slots import ClientSettings, ClientSlots
from sbus.shared.log_block import HAND_OVER
from sbus.shared.log_share import WORDS_PER_DESTINATION, LogShare
from sbus.shared.ordered_log import OrderedLog
from sbus.shared.shared_memory import WORKERS_MAX, SharedMemory
from sbus.shared.stall_table import StallTable
from sbus.unix.credentials import peer_credentials
from tests.unit.shared.memories import log_block_of, open_memory

WORKERS = 2
LIMITS = Limits(log_bytes=4096, table_bytes=4096)
SETTINGS = ClientSettings(echo=True, wants_notices=False, flood_control=FloodControl())


class Bus:
    """The front's part of a bus; stands in for its departure and its succession."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self.registry = ClientRegistry(WORKERS, ClientSlots(memory.client_slots))
        self.book = AccountBook(memory.accounts, WORKERS, LIMITS)
        settings = BusSettings(workers=WORKERS, limits=LIMITS)
        self.user_limits = EffectiveUserLimits(settings, self.book)
        self.expects_successors = False

    def expect_successors(self) -> None:
        self.expects_successors = True

    def take_in(self, client: object) -> None:
        pass

    def connect(self, worker: int, sock: socket.socket) -> int:
        """A client that this worker serves; returns its number."""
        own = peer_credentials(sock)
        account = self.user_limits.open_account(own.uid)
        assert account is not None
        client = self.registry.add(worker, sock, own, account)
        ClientSlots(self.memory.client_slots, worker)[client.slot].save(client.number, SETTINGS)
        return client.number

    async def resume(self, sockets: dict[int, socket.socket]) -> int:
        own = cast("Any", self)
        stalls = StallTable(self.memory.stalls, LIMITS.blocking_clients_max, None)
        reaper = Reaper(self.memory, self.book, stalls)
        resumption = BusResumption(self.memory, self.registry, self.user_limits, own, reaper, own)
        return await resumption.run(sockets)

    def workers(self) -> dict[int, int]:
        return {client.number: client.worker for client in self.registry}


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with open_memory(WORKERS, LIMITS) as memory:
        memory.lock.open()
        yield memory


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """The bus's ends of connections."""
    with ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
        for pair in pairs:
            for sock in pair:
                stack.enter_context(sock)
        yield [ours for ours, _ in pairs]


async def test_clients_come_to_the_worker_that_has_served_them(
    memory: SharedMemory, sockets: list[socket.socket]
) -> None:
    left, bus = Bus(memory), Bus(memory)
    numbers = [left.connect(number % WORKERS, sock) for number, sock in enumerate(sockets)]
    # The front did not hear any more that this one has arrived at another worker.
    ClientSlots(memory.client_slots, 1)[0].save(numbers[0], SETTINGS)
    assert await bus.resume(dict(zip(numbers, sockets, strict=True))) == 0
    assert bus.workers() == {1: 1, 2: 1, 3: 0, 4: 1}
    assert [client.connected_at for client in bus.registry] == pytest.approx(
        [client.connected_at for client in left.registry], abs=1e-5
    )
    assert bus.expects_successors


async def test_a_client_on_its_way_comes_to_the_worker_that_it_is_handed_to(
    memory: SharedMemory, sockets: list[socket.socket]
) -> None:
    left, bus = Bus(memory), Bus(memory)
    number = left.connect(0, sockets[0])
    share = LogShare(memoryview(bytearray(8 * WORDS_PER_DESTINATION * WORKERS_MAX)).cast("Q"))
    entry = (0b10, b"MSG %b\0" % HAND_OVER, len(HAND_OVER))
    with memory.lock as words:
        OrderedLog(memory, 1).start(words)
        block = log_block_of(number, 0, [entry])
        assert OrderedLog(memory, 0).append(words, block, share) >= 0
    await bus.resume({number: sockets[0]})
    assert bus.workers() == {number: 1}


async def test_a_socket_that_is_not_the_one_of_its_number_is_ended(
    memory: SharedMemory, sockets: list[socket.socket]
) -> None:
    left, bus = Bus(memory), Bus(memory)
    numbers = [left.connect(0, sock) for sock in sockets[:2]]
    assert await bus.resume({numbers[0]: sockets[0], numbers[1]: sockets[2], 99: sockets[3]}) == 1
    assert list(bus.workers()) == [numbers[0]]
    assert [sock.fileno() < 0 for sock in sockets] == [False, False, True, True]


async def test_numbers_and_slots_are_given_out_as_before(
    memory: SharedMemory, sockets: list[socket.socket]
) -> None:
    left, bus = Bus(memory), Bus(memory)
    numbers = [left.connect(0, sock) for sock in sockets[:3]]
    left.registry.remove(numbers[1])
    assert await bus.resume({numbers[0]: sockets[0]}) == 1
    assert bus.connect(1, sockets[3]) == 4
    slots = {client.slot for client in bus.registry}
    assert slots in ({0, 1}, {0, 2})
    assert bus.connect(1, sockets[1]) == 5
    assert bus.connect(1, sockets[2]) == 6
    assert {client.slot for client in bus.registry} == {0, 1, 2, 3}
