"""The rebalancer: moves connected clients where placement wants them.

It looks at the workers once a second, and moves a bounded number of clients each time. A client
that was moved stays where it is for a while, and a worker is emptied only after it had little to do
for some seconds, so nothing moves to and fro.
"""

from collections.abc import Collection, Sequence
from itertools import islice

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.load_meter import SAMPLE_SECONDS, LoadMeter
from sbus.broker.front.mover import ClientMover
from sbus.broker.front.placement import SATURATED_SHARE, Move, Placement, moved_part
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import StartSampling, StopSampling, TrafficSample

_SAMPLING_SECONDS = 0.05
_SAMPLE_WAIT_SECONDS_MAX = 1.0
"""How long a worker may take to send its sample. One that hangs is killed later than that."""
_MOVES_WAIT_SECONDS_MAX = 5.0
"""How long the rebalancer waits for moves, which go on all the same."""
_REST_SECONDS = 10.0
"""A client that was moved, or could not be, is not moved again before this time, except away from
a saturated worker."""
_MOVES_AT_A_TIME = 16
"""Each adds the client's patterns to the subscription table until it is done."""
_MERGE_AFTER_SECONDS = 10.0
"""How long two workers must have had little to do before one of them is emptied."""
_PAUSE_SECONDS_MAX = 32.0
"""The longest pause between two samples of a worker from which no client can be moved."""
_REUNITE_SECONDS_MIN = 4.0
"""Between two looks for clients that exchange messages over two workers; longer, up to
`_PAUSE_SECONDS_MAX`, while there are none."""
_IDLE_SHARE = 0.05
"""A worker that is less busy has no messages worth a look."""
_SUBSCRIPTIONS_PER_MOVE = 20
"""A client with more of them counts as several: other workers read records for each."""
_MERGING_PART = 4
"""Of the moves that are allowed in a second, while a worker is emptied: that is not urgent."""


class Rebalancer:
    """Of one bus."""

    def __init__(
        self,
        placement: Placement,
        meter: LoadMeter,
        mover: ClientMover,
        registry: ClientRegistry,
        supervisor: Supervisor,
        settings: BusSettings,
    ) -> None:
        self._placement = placement
        self._meter = meter
        self._mover = mover
        self._registry = registry
        self._supervisor = supervisor
        self.apply_settings(settings)
        self._allowance = 0
        """Moves that may begin now; less than 0 after expensive ones."""
        self._rests_until: dict[int, float] = {}
        """Clients that are not to be moved now."""
        self._mergeable_since: float | None = None
        self._reunite_pause = _REUNITE_SECONDS_MIN, _REUNITE_SECONDS_MIN
        """Until when, and how long."""
        self._pauses: dict[int, tuple[float, float]] = {}
        """Workers from which no client could be moved: until when to pause, and how long."""
        self._samples: dict[int, TrafficSample] = {}
        """Those that were not looked at yet, by worker."""
        self._sampling: set[int] = set()
        """Workers that were asked for a sample and have not sent it yet."""
        self._sampled = trio.lowlevel.ParkingLot()

    def apply_settings(self, settings: BusSettings) -> None:
        self._moves_max = int(settings.limits.client_moves_per_second_max * SAMPLE_SECONDS)

    async def run(self) -> None:
        """Measure the workers and move clients, for ever."""
        while True:
            self._meter.sample()
            self._allowance = min(self._allowance + self._moves_max, self._moves_max)
            if self._allowance > 0:
                await self._rebalance(trio.current_time())
            await trio.sleep(SAMPLE_SECONDS)

    async def _rebalance(self, now: float) -> None:
        for client, until in list(self._rests_until.items()):
            if now >= until:
                del self._rests_until[client]
        crowded = self._placement.crowded()
        overloaded, is_relieving = self._placement.overloaded(), False
        for worker in overloaded:
            is_relieving |= await self._relieve(worker, now)
        is_merging = await self._merge(now, is_calm=not is_relieving)
        # A user that is on every worker while one is emptied leaves that one.
        if crowded is not None and not is_merging:
            uid, source, target = crowded
            await self._move_from(source, target, self._allowance, uid)
        elif not is_relieving:
            await self._reunite(now, overloaded)

    async def _relieve(self, worker: int, now: float) -> bool:
        """Move clients away from a busy worker; False if none could be moved. Such a worker keeps
        nothing else waiting."""
        pause_until, pause_seconds = self._pauses.get(worker, (0.0, SAMPLE_SECONDS))
        if now < pause_until:
            return False
        sample = await self._take_sample(worker)
        is_saturated = self._meter.busy_shares[worker] >= SATURATED_SHARE
        movable = self._movable(worker, rested=not is_saturated)
        moved = await self._move(self._placement.relieve(worker, sample, movable))
        if moved:
            self._pauses.pop(worker, None)
            # So that the next busy worker does not give its clients to the same one.
            self._meter.expect_moved(worker, moved[0].worker, moved_part(sample, moved))
        else:
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
            self._pauses[worker] = now + pause_seconds, pause_seconds
        return bool(moved)

    async def _merge(self, now: float, *, is_calm: bool) -> bool:
        """Empty a worker, if no clients were moved for a better reason; whether one is being
        emptied."""
        pair = self._placement.mergeable() if is_calm else None
        if pair is None:
            self._mergeable_since = None
            return False
        if self._mergeable_since is None:
            self._mergeable_since = now
        if now - self._mergeable_since < _MERGE_AFTER_SECONDS:
            return False
        await self._move_from(*pair, max(1, self._moves_max // _MERGING_PART))
        return True

    async def _reunite(self, now: float, overloaded: Collection[int]) -> None:
        """Have clients that exchange messages over two workers share one of these."""
        until, seconds = self._reunite_pause
        workers = [
            worker
            for worker, share in enumerate(self._meter.busy_shares)
            if share >= _IDLE_SHARE and worker not in overloaded
        ]
        if now < until or len(workers) < 2 or not self._placement.is_by_load:
            return
        samples = {worker: await self._take_sample(worker) for worker in workers}
        clients = {
            client: (worker, uid)
            for worker in workers
            for client, uid in self._movable(worker).items()
        }
        moves = self._placement.reunite(samples, clients)
        seconds = _REUNITE_SECONDS_MIN if moves else min(2 * seconds, _PAUSE_SECONDS_MAX)
        self._reunite_pause = now + seconds, seconds
        await self._move(moves)

    async def _move_from(
        self, source: int, target: int, moves_max: int, uid: int | None = None
    ) -> None:
        """Move some clients of a worker, of one user or of all."""
        clients = (
            client for client, own in self._movable(source).items() if uid is None or own == uid
        )
        await self._move([Move(client, target) for client in islice(clients, moves_max)])

    def _movable(self, worker: int, *, rested: bool = True) -> dict[int, int]:
        """The clients of a worker, perhaps only those that do not rest, and their users."""
        return {
            client.number: client.user
            for client in self._registry.of_worker(worker)
            if not rested or client.number not in self._rests_until
        }

    async def _move(self, moves: Sequence[Move]) -> list[Move]:
        """Make moves, as many as are allowed; returns those that were made in time."""
        moved: list[Move] = []
        if moves:
            at_a_time = trio.CapacityLimiter(_MOVES_AT_A_TIME)
            with trio.move_on_after(_MOVES_WAIT_SECONDS_MAX):
                async with trio.open_nursery() as nursery:
                    for move in moves:
                        nursery.start_soon(self._move_one, move, at_a_time, moved)
            self._meter.restart()
        return moved

    async def _move_one(
        self, move: Move, at_a_time: trio.CapacityLimiter, moved: list[Move]
    ) -> None:
        async with at_a_time:
            client = self._registry.get(move.client)
            if client is not None and self._allowance > 0:
                self._allowance -= 1
                self._rests_until[client.number] = trio.current_time() + _REST_SECONDS
                outcome = await self._mover.move(client, move.worker)
                self._allowance -= outcome.subscriptions // _SUBSCRIPTIONS_PER_MOVE
                if not outcome.why_not:
                    moved.append(move)

    # -- sampling ------------------------------------------------------------------------------
    async def _take_sample(self, worker: int) -> TrafficSample:
        """What a worker's clients exchange now; nothing of a worker that dies, or is too slow."""
        if worker not in self._supervisor.running_workers() or worker in self._sampling:
            return TrafficSample()
        self._samples.pop(worker, None)  # one that came too late
        self._sampling.add(worker)
        self._supervisor.send(worker, StartSampling())
        await trio.sleep(_SAMPLING_SECONDS)
        self._supervisor.send(worker, StopSampling())
        with trio.move_on_after(_SAMPLE_WAIT_SECONDS_MAX):
            while worker in self._sampling:
                await self._sampled.park()
        return self._samples.pop(worker, TrafficSample())

    def on_sample(self, worker: int, sample: TrafficSample) -> None:
        self._samples[worker] = sample
        self.on_worker_death(worker)

    def on_worker_death(self, worker: int) -> None:
        self._sampling.discard(worker)
        self._sampled.unpark_all()
