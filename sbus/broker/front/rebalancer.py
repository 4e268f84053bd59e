"""The rebalancer: moves connected clients where placement wants them.

It looks at the workers once a second, and moves a bounded number of clients each time. A client
that was moved stays where it is for a while, and a worker is emptied only after it had little to do
for some seconds, so nothing moves to and fro.
"""

from collections.abc import Iterable
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
        self._sample_from: int | None = None
        self._sample = TrafficSample()
        self._sampled = trio.Event()

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
        overloaded = self._placement.overloaded()
        crowded = self._placement.crowded()
        for worker in overloaded:
            await self._relieve(worker, now)
        is_merging = await self._merge(now, is_calm=not overloaded)
        # A user that is on every worker while one is emptied leaves that one.
        if crowded is not None and not is_merging:
            uid, source, target = crowded
            await self._move_from(source, target, self._allowance, uid)
        elif not overloaded:
            await self._reunite(now)

    async def _relieve(self, worker: int, now: float) -> None:
        pause_until, pause_seconds = self._pauses.get(worker, (0.0, SAMPLE_SECONDS))
        if now < pause_until:
            return
        sample = await self._take_sample(worker)
        is_saturated = self._meter.busy_shares[worker] >= SATURATED_SHARE
        moves = self._placement.relieve(
            worker, sample, self._movable(worker, rested=not is_saturated)
        )
        if moves:
            self._pauses.pop(worker, None)
            await self._move(moves)
            # So that the next busy worker does not give its clients to the same one.
            self._meter.expect_moved(worker, moves[0].worker, moved_part(sample, moves))
        else:
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
            self._pauses[worker] = now + pause_seconds, pause_seconds

    async def _merge(self, now: float, *, is_calm: bool) -> bool:
        """Empty a worker, if no worker is overloaded; whether one is being emptied."""
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

    async def _reunite(self, now: float) -> None:
        """Have clients that exchange messages over two workers share one of these."""
        until, seconds = self._reunite_pause
        busy_shares = self._meter.busy_shares
        workers = [worker for worker, share in enumerate(busy_shares) if share >= _IDLE_SHARE]
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
        if moves:
            await self._move(moves)

    async def _move_from(
        self, source: int, target: int, moves_max: int, uid: int | None = None
    ) -> None:
        """Move some clients of a worker, of one user or of all."""
        clients = (
            client for client, own in self._movable(source).items() if uid is None or own == uid
        )
        await self._move(Move(client, target) for client in islice(clients, moves_max))

    def _movable(self, worker: int, *, rested: bool = True) -> dict[int, int]:
        """The clients of a worker, perhaps only those that do not rest, and their users."""
        return {
            client.number: client.credentials.uid
            for client in self._registry.of_worker(worker)
            if not rested or client.number not in self._rests_until
        }

    async def _move(self, moves: Iterable[Move]) -> None:
        at_a_time = trio.CapacityLimiter(_MOVES_AT_A_TIME)
        async with trio.open_nursery() as nursery:
            for move in moves:
                nursery.start_soon(self._move_one, move, at_a_time)
        self._meter.restart()

    async def _move_one(self, move: Move, at_a_time: trio.CapacityLimiter) -> None:
        async with at_a_time:
            client = self._registry.get(move.client)
            if client is not None and self._allowance > 0:
                self._allowance -= 1
                outcome = await self._mover.move(client, move.worker)
                self._allowance -= outcome.subscriptions // _SUBSCRIPTIONS_PER_MOVE
                self._rests_until[client.number] = trio.current_time() + _REST_SECONDS

    # -- sampling ------------------------------------------------------------------------------
    async def _take_sample(self, worker: int) -> TrafficSample:
        """What a worker's clients exchange now; nothing of a worker that dies."""
        self._sample_from, self._sample, self._sampled = worker, TrafficSample(), trio.Event()
        if worker in self._supervisor.running_workers():
            self._supervisor.send(worker, StartSampling())
            await trio.sleep(_SAMPLING_SECONDS)
            self._supervisor.send(worker, StopSampling())
            await self._sampled.wait()
        self._sample_from = None
        return self._sample

    def on_sample(self, worker: int, sample: TrafficSample) -> None:
        if worker == self._sample_from:
            self._sample = sample
            self._sampled.set()

    def on_worker_death(self, worker: int) -> None:
        if worker == self._sample_from:
            self._sampled.set()
