"""Clients on simulated workers: how they spread with load, and come together without it.

Each client works with a partner and causes a known load. A worker is as busy as its clients make
it, and a pair of which each is served by another worker costs half as much again.
"""

import random
from collections.abc import Iterable
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.broker.front.load_meter import LoadMeter
from sbus.broker.front.mover import MoveOutcome
from sbus.broker.front.placement import Placement, WorkerLoad
from sbus.broker.front.rebalancer import Rebalancer
from sbus.broker.ipc import worker_protocol as protocol
from sbus.limits import Limits
from sbus.unix.credentials import Credentials
from tests.support.no_socket import no_socket
from tests.unit.shared.memories import open_account, spare_slots

ANN, BOB = 1, 2
UNITS = 10_000
"""Of traffic, in a sample of a wholly busy worker."""
CROSSING = 1.5
CLIENTS_MAX = 1_000


class Simulation:
    """Stands in for the workers, the meter, the mover and the supervisor of a bus."""

    def __init__(
        self, workers: int, *, noise: float = 0.0, processors: int = 64, **limits: int
    ) -> None:
        settings = BusSettings(workers=workers, limits=Limits(**limits))
        self.registry = ClientRegistry(workers, spare_slots(CLIENTS_MAX))
        self.demands: dict[int, float] = {}
        """The load that a client causes, by its number; that of a whole worker is 1."""
        self.moved: list[int] = []
        self.busy_shares = [0.0] * workers
        self.immovable: set[int] = set()
        self.hung: set[int] = set()
        """Workers that answer nothing."""
        self.subscriptions_each = 1
        self._chance = random.Random(1)
        self._noise = noise
        self.placement = Placement(settings, self.loads, processors)
        own = cast("Any", self)
        self.rebalancer = Rebalancer(self.placement, own, own, self.registry, own, settings)

    # -- clients -------------------------------------------------------------------------------
    def connect(self, uid: int, pairs: int, demand: float = 0.0) -> list[Client]:
        """Clients that come one after the other; each two of them are a pair with this demand."""
        clients = []
        for _ in range(2 * pairs):
            worker = self.placement.choose(uid, range(len(self.busy_shares)))
            own = Credentials(gid=uid, uid=uid, pid=1)
            account = open_account(Limits(users_max=1), uid)
            client = self.registry.add(worker, no_socket(), own, account)
            self.demands[client.number] = demand / 2
            clients.append(client)
        return clients

    def serve(self, worker: int, clients: Iterable[Client]) -> None:
        """These clients are on this worker, wherever they were placed."""
        for client in clients:
            self.registry.move(client, worker)

    def demand(self, clients: Iterable[Client], demand: float) -> None:
        for client in clients:
            self.demands[client.number] = demand / 2

    def partner(self, number: int) -> Client | None:
        return self.registry.get(number + 1 if number % 2 else number - 1)

    def used(self) -> list[int]:
        """How many clients each worker has that has any."""
        return [users.total() for users in self.registry.by_worker if users]

    def load(self, client: Client) -> float:
        partner = self.partner(client.number)
        crosses = partner is not None and partner.worker != client.worker
        return self.demands[client.number] * (CROSSING if crosses else 1)

    # -- what the rebalancer uses --------------------------------------------------------------
    def loads(self) -> list[WorkerLoad]:
        return [
            WorkerLoad(worker, *load)
            for worker, load in enumerate(
                zip(self.busy_shares, self.registry.by_worker, strict=True)
            )
        ]

    def sample(self) -> None:
        for worker in range(len(self.busy_shares)):
            busy = sum(map(self.load, self.registry.of_worker(worker)))
            busy *= 1 + self._chance.uniform(-self._noise, self._noise)
            self.busy_shares[worker] = min(1.0, busy)

    def restart(self) -> None:
        """Loads are those of one instant."""

    def expect_moved(self, source: int, target: int, part: float) -> None:
        LoadMeter.expect_moved(cast("Any", self), source, target, part)

    def running_workers(self) -> list[int]:
        return list(range(len(self.busy_shares)))

    def send(self, worker: int, command: protocol.WorkerCommand) -> None:
        if isinstance(command, protocol.StopSampling) and worker not in self.hung:
            self.rebalancer.on_sample(worker, self._traffic(worker))

    def _traffic(self, worker: int) -> protocol.TrafficSample:
        clients, exchanges = [], []
        for client in self.registry.of_worker(worker):
            units = int(UNITS * self.demands[client.number])
            if not units:
                continue
            clients.append(protocol.ClientTraffic(client.number, units // 2, units // 2))
            partner = self.partner(client.number)
            if partner is not None:
                publisher = client if partner.worker == worker else partner
                recipient = partner if partner.worker == worker else client
                exchanges.append(protocol.Exchange(publisher.number, recipient.number, units // 2))
        return protocol.TrafficSample(clients, exchanges)

    async def move(self, client: Client, to: int) -> MoveOutcome:
        await trio.lowlevel.checkpoint()
        if not self.hung.isdisjoint((client.worker, to)):
            await trio.sleep_forever()
        if client.number in self.immovable:
            return MoveOutcome("no")
        self.registry.move(client, to)
        self.moved.append(client.number)
        return MoveOutcome("", self.subscriptions_each)

    # -- time ----------------------------------------------------------------------------------
    async def run(self, seconds: float) -> int:
        """Let time pass; returns how many clients were moved."""
        before = len(self.moved)
        with trio.move_on_after(seconds):
            await self.rebalancer.run()
        return len(self.moved) - before


async def test_no_more_workers_are_used_than_there_are_processors(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bus = Simulation(8, processors=3)
    bus.demand(bus.connect(ANN, 100), 6.5 / 100)
    await bus.run(30)
    assert len(bus.used()) == 3
    bus.connect(ANN, 5)
    assert len(bus.used()) == 3


async def test_clients_come_together_when_load_ends(autojump_clock: trio.testing.MockClock) -> None:
    bus = Simulation(4)
    clients = bus.connect(ANN, 40)
    bus.demand(clients, 3.0 / 40)
    await bus.run(20)
    assert len(bus.used()) == 4
    bus.demand(clients, 0.001)
    await bus.run(60)
    assert bus.used() == [80]
    assert await bus.run(60) == 0


async def test_pairs_are_reunited_where_there_is_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Every pair is on two workers, neither of which is busy, but too much so to become one."""
    bus = Simulation(4)
    clients = bus.connect(ANN, 10, demand=0.03)
    for client in clients[::2]:
        bus.registry.move(client, 1)
    assert all(bus.load(client) > bus.demands[client.number] for client in clients)
    assert await bus.run(40) <= 12
    assert all(bus.load(client) == bus.demands[client.number] for client in clients)
    assert len(bus.used()) == 2
    assert await bus.run(100) == 0


@pytest.mark.parametrize(
    ("busy", "demand", "idle"),
    [(2, 0.4, 100), (2, 0.8, 10), (10, 0.2, 10)],
    ids=["fewer clients", "a pair without neighbours", "clients that cannot be moved"],
)
async def test_idle_workers_become_one_beside_a_busy_one(
    autojump_clock: trio.testing.MockClock, busy: int, demand: float, idle: int
) -> None:
    """Each of two workers has so many idle clients."""
    bus = Simulation(4)
    clients = bus.connect(ANN, busy // 2 + idle)
    bus.demand(clients[:busy], demand)
    bus.serve(0, clients[:busy])
    bus.serve(1, clients[busy : busy + idle])
    bus.serve(2, clients[busy + idle :])
    bus.immovable = {client.number for client in clients[:busy]} if busy > 2 else set()
    await bus.run(60)
    assert bus.used() == [busy, 2 * idle]


async def test_a_worker_that_hangs_does_not_keep_others_busy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bus = Simulation(4)
    clients = bus.connect(ANN, 20)
    bus.demand(clients, 0.08)
    for worker, some in enumerate((clients[:20], clients[20:])):
        bus.serve(worker, some)
    bus.hung = {0}
    await bus.run(20)
    assert bus.busy_shares[0] > 0.7
    assert bus.busy_shares[1] <= 0.5


async def test_moves_that_do_not_end_do_not_keep_others_waiting(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A worker hangs while it is being emptied; then another one gets busy."""
    bus = Simulation(4)
    clients = bus.connect(ANN, 21)
    for worker, some in enumerate((clients[:20], clients[20:40], clients[40:])):
        bus.serve(worker, some)
    bus.hung = {2}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.run, 60)
        await trio.sleep(30)
        assert not bus.moved
        bus.demand(clients[:20], 0.08)
    assert bus.moved
    assert bus.busy_shares[0] <= 0.5


async def test_a_worker_is_emptied_for_good_if_its_user_is_on_all_others_but_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Until that is done, the user is on every worker."""
    bus = Simulation(4)
    ann, bob = bus.connect(ANN, 480), bus.connect(BOB, 120)
    bus.demand(ann[:800], 0.002)
    for worker, some in enumerate((ann[:400], ann[400:800], ann[800:], bob)):
        bus.serve(worker, some)
    assert await bus.run(60) == 160
    assert bus.used() == [400, 400, 400]
    assert await bus.run(60) == 0


async def test_several_busy_workers_do_not_all_give_to_the_same_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bus = Simulation(8)
    clients = bus.connect(ANN, 70)
    bus.demand(clients, 4.9 / 70)
    for worker in range(7):
        bus.serve(worker, clients[20 * worker : 20 * worker + 20])
    moved = 0
    for _ in range(10):
        moved += await bus.run(1)
        bus.sample()
        assert max(bus.busy_shares) < 0.71, "more than the busiest had before"
    assert 0 < moved <= 40


async def test_moves_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    bus = Simulation(8, client_moves_per_second_max=10)
    bus.demand(bus.connect(ANN, 100), 6.5 / 100)
    assert 0 < await bus.run(1.5) <= 20
    expensive = Simulation(8, client_moves_per_second_max=100)
    expensive.subscriptions_each = 1_000
    expensive.demand(expensive.connect(ANN, 100), 6.5 / 100)
    assert 0 < await expensive.run(10.5) <= 16 + 20
    none = Simulation(8, client_moves_per_second_max=0)
    none.demand(none.connect(ANN, 100), 6.5 / 100)
    assert await none.run(10) == 0


async def test_other_settings_apply_at_once(autojump_clock: trio.testing.MockClock) -> None:
    bus = Simulation(2, client_moves_per_second_max=0)
    bus.demand(bus.connect(ANN, 10), 0.06)
    assert await bus.run(10) == 0
    limits = Limits(worker_busy_percent_max=70)
    for part in (bus.rebalancer, bus.placement):
        part.apply_settings(BusSettings(workers=2, limits=limits))
    assert await bus.run(10) == 0
    for part in (bus.rebalancer, bus.placement):
        part.apply_settings(BusSettings(workers=2))
    assert await bus.run(10) > 0


async def test_clients_that_cannot_be_moved_are_left_alone_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bus = Simulation(2)
    bus.demand(bus.connect(ANN, 10), 0.07)
    bus.immovable = set(bus.demands)
    await bus.run(5)
    bus.immovable = set()
    assert await bus.run(4) == 0
    assert await bus.run(15) > 0


async def test_a_user_leaves_a_worker_to_another_that_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bus = Simulation(4)
    bus.demand(bus.connect(ANN, 100), 10.0 / 100)
    await bus.run(20)
    assert len(bus.used()) == 4
    (quiet, _) = bus.connect(BOB, 1, demand=0.01)
    await bus.run(30)
    assert any(not users[ANN] for users in bus.registry.by_worker)
    assert sum(bool(users[ANN]) for users in bus.registry.by_worker) == 3
    assert quiet.worker in range(4)


@given(
    workers=st.integers(1, 8),
    pairs=st.lists(
        st.tuples(st.sampled_from([ANN, BOB]), st.floats(0, 0.4)), min_size=1, max_size=40
    ),
    noise=st.sampled_from([0.0, 0.05]),
)
@settings(max_examples=3 * settings().max_examples // 5)
def test_any_load_comes_to_rest(workers: int, pairs: list[tuple[int, float]], noise: float) -> None:
    """Whatever pairs do, moving ends, no client moves often, and no user has all workers."""

    async def play() -> None:
        bus = Simulation(workers, noise=noise)
        for uid, demand in pairs:
            bus.connect(uid, 1, demand)
        await bus.run(40)
        late = await bus.run(200)
        assert late <= 20 * noise * len(bus.demands)
        for number in bus.demands:
            assert bus.moved.count(number) <= 2 * workers
        for uid in (ANN, BOB):
            others = any(users.keys() - {uid} for users in bus.registry.by_worker)
            occupied = sum(uid in users for users in bus.registry.by_worker)
            assert occupied < workers or not others or workers == 1

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
