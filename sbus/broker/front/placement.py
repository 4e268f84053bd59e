"""Placement: which worker serves a client.

A message between clients of one worker never leaves its process, and on an idle host a second
worker costs every message a second wake-up. So with `placement = "load"` few workers serve while
few suffice:

- The clients of one user come together on a worker that is not busy. A user without such a worker
  shares one that serves already.
- A worker that serves nobody is used when all others are busy, and fewer are used than there are
  processors, or those serve none of this user's clients: then the processors are shared by the
  kernel, and not by the turns of a busy worker. When all are busy, the least busy one is chosen.
- While other users are connected, one user leaves them a worker that serves none of its clients.

Connected clients are moved for the same reasons. A busy worker gives half of the difference to the
least busy worker: groups of clients that mostly exchange messages with each other, as a whole. Only
where it has no time left, and only groups of more than two, are they divided: a message that
crosses costs more than is gained between two clients. A client that mostly exchanges messages with
one of another worker joins it, unless that worker would have no time left. Two workers that have
little to do become one again. A worker is emptied below half of the load above which it is
relieved, so that neither causes the other.

With `placement = "spread"` every worker has as many clients as any other.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from sbus.broker.config.settings import BusSettings
from sbus.broker.ipc.worker_protocol import ClientTraffic, TrafficSample

SATURATED_SHARE = 0.9
"""A worker that is so busy has no time left: what its clients send waits."""
_DIFFERENCE_MIN = 0.2
"""Between two busy workers, for moving clients from one to the other."""
_JOINED_PART = 0.5
"""Of the load that a client causes as long as its messages cross, what it adds to the worker of its
partner: a message that crosses is handled twice, and wakes two workers."""


class WorkerLoad(msgspec.Struct, frozen=True):
    """A worker as placement sees it."""

    worker: int
    busy_share: float
    """Of the last moments: 0 for a worker that slept, 1 for one that always had work."""
    clients: Mapping[int, int]
    """How many it has of each user, by user id."""

    @property
    def is_used(self) -> bool:
        return bool(self.clients)


class Move(msgspec.Struct, frozen=True):
    """A client that another worker should serve."""

    client: int
    worker: int


class Placement:
    """Decides for one bus, which may use so many processors. `loads` returns the load of every
    worker."""

    def __init__(
        self,
        settings: BusSettings,
        loads: Callable[[], Sequence[WorkerLoad]],
        processors: int,
    ) -> None:
        self._loads = loads
        self._processors = processors
        self.is_by_load = settings.placement == "load"
        self.apply_settings(settings)

    def apply_settings(self, settings: BusSettings) -> None:
        self._busy_share_max = settings.limits.worker_busy_percent_max / 100

    def is_busy(self, load: WorkerLoad) -> bool:
        """Whether a worker should not get more work while others have less."""
        return load.busy_share > self._busy_share_max

    def choose(self, uid: int, available: Collection[int]) -> int:
        """The worker for a new client of this user, one of those that are available."""
        loads = self._loads()
        candidates = [load for load in loads if load.worker in available]
        if not self.is_by_load:
            return min(candidates, key=lambda load: sum(load.clients.values())).worker
        permitted = [load for load in candidates if may_use(uid, load, loads)] or candidates
        has_none = not any(uid in load.clients for load in loads)
        if self._may_use_more(loads) or has_none:
            useful = permitted
        else:
            useful = [load for load in permitted if load.is_used] or permitted
        return min(useful, key=lambda load: self._rank(uid, load)).worker

    def _may_use_more(self, loads: Sequence[WorkerLoad]) -> bool:
        """Whether one more worker can run beside those that serve clients."""
        return sum(load.is_used for load in loads) < self._processors

    def _rank(self, uid: int, load: WorkerLoad) -> tuple[float, ...]:
        if self.is_busy(load):
            return 1, load.busy_share, sum(load.clients.values())
        return 0, uid not in load.clients, not load.is_used, load.worker

    # -- connected clients ---------------------------------------------------------------------
    def overloaded(self) -> list[int]:
        """The workers that should give clients to others, if there is one to take them."""
        return [
            load.worker
            for load in self._loads()
            if self.is_by_load and self.is_busy(load) and self._relief(load) is not None
        ]

    def relieve(self, worker: int, sample: TrafficSample, users: Mapping[int, int]) -> list[Move]:
        """The clients that a busy worker should give to another, of those in `users`, which has
        their user ids; with those first that exchange most."""
        loads = self._loads()
        source = loads[worker]
        target = self._relief(source)
        units = sum(client.published + client.received for client in sample.clients)
        if target is None or not units:
            return []
        excess_units = int(units * (source.busy_share - target.busy_share) / 2 / source.busy_share)
        groups = [
            group
            for group in _groups(sample)
            if all(
                client.client in users and may_use(users[client.client], target, loads)
                for client in group
            )
        ]
        moved = _fitting(groups, excess_units)
        if not moved and source.busy_share >= SATURATED_SHARE:
            largest = max(groups, key=_units, default=[])
            if len(largest) > 2:
                recipients_first = sorted(largest, key=lambda client: client.published > 0)
                moved = _fitting([[client] for client in recipients_first], excess_units)
        return [Move(client.client, target.worker) for client in moved]

    def _relief(self, source: WorkerLoad) -> WorkerLoad | None:
        """The worker that should take clients of a busy one."""
        loads = self._loads()
        others = [load for load in loads if load.worker != source.worker]
        with_room = [
            load
            for load in others
            if load.is_used and load.busy_share + source.busy_share <= 2 * self._busy_share_max
        ]
        unused = [load for load in others if not load.is_used and self._may_use_more(loads)]
        less_busy = [
            load
            for load in others
            if load.is_used and load.busy_share <= source.busy_share - _DIFFERENCE_MIN
        ]
        return min(with_room or unused or less_busy, key=lambda it: it.busy_share, default=None)

    def reunite(
        self, samples: Mapping[int, TrafficSample], clients: Mapping[int, tuple[int, int]]
    ) -> list[Move]:
        """The clients that should join another of those in `clients`, which has their workers and
        user ids; `samples` are those of all workers that are not idle."""
        loads = self._loads()
        busy = {load.worker: load.busy_share for load in loads}
        demands = {
            client.client: (_units([client]), busy[worker] * _units([client]) / units)
            for worker, sample in samples.items()
            if (units := _units(sample.clients))
            for client in sample.clients
        }
        settled: set[int] = set()
        moves = []
        exchanges = [exchange for sample in samples.values() for exchange in sample.exchanges]
        for exchange in sorted(exchanges, key=lambda it: it.messages, reverse=True):
            pair = {exchange.publisher, exchange.recipient}
            if not pair <= clients.keys() & demands.keys() or pair & settled:
                continue
            mover, stays = sorted(pair, key=lambda client: demands[client][0])
            (source, uid), (target, _) = clients[mover], clients[stays]
            units, demand = demands[mover]
            if (
                source != target
                and 2 * exchange.messages >= units
                and busy[target] + demand * _JOINED_PART <= SATURATED_SHARE
                and may_use(uid, loads[target], loads)
            ):
                settled |= pair
                busy[target] += demand * _JOINED_PART
                moves.append(Move(mover, target))
        return moves

    def mergeable(self) -> tuple[int, int] | None:
        """A worker that should be emptied, and the one that should serve its clients."""
        used = [load for load in self._loads() if load.is_used]
        if not self.is_by_load:
            return None
        for source in sorted(used, key=lambda it: (sum(it.clients.values()), -it.worker)):
            for target in used:
                both = target.busy_share + source.busy_share
                if target is not source and both <= self._busy_share_max / 2:
                    return source.worker, target.worker
        return None

    def crowded(self) -> tuple[int, int, int] | None:
        """A user that leaves no worker to others, the worker that it should leave, and the one that
        should serve its clients instead."""
        loads = self._loads()
        if not self.is_by_load or len(loads) < 2:
            return None
        for uid in set.intersection(*(set(load.clients) for load in loads)):
            if any(len(load.clients) > 1 for load in loads):
                source = min(loads, key=lambda load: load.clients[uid])
                target = min(
                    (load for load in loads if load is not source), key=lambda it: it.busy_share
                )
                return uid, source.worker, target.worker
        return None


def moved_part(sample: TrafficSample, moves: Collection[Move]) -> float:
    """The part of what a worker does, as its sample shows that, that goes with these clients."""
    moved = {move.client for move in moves}
    return _units([it for it in sample.clients if it.client in moved]) / _units(sample.clients)


def may_use(uid: int, load: WorkerLoad, loads: Sequence[WorkerLoad]) -> bool:
    """Whether this user leaves a worker to other users if it has clients on this one."""
    if uid in load.clients:
        return True
    used = sum(uid in other.clients for other in loads) + 1
    return used < len(loads) or not any(
        len(other.clients) > (uid in other.clients) for other in loads
    )


def _units(group: Sequence[ClientTraffic]) -> int:
    return sum(client.published + client.received for client in group)


def _fitting(groups: Iterable[list[ClientTraffic]], units_max: int) -> list[ClientTraffic]:
    """The clients of groups that together do no more than this, the busiest groups first."""
    fitting: list[ClientTraffic] = []
    for group in sorted(groups, key=_units, reverse=True):
        if _units(group) <= units_max:
            units_max -= _units(group)
            fitting += group
    return fitting


def _groups(sample: TrafficSample) -> list[list[ClientTraffic]]:
    """The clients of a sample; in one group are those that exchange, directly or over others, at
    least half of what one of them publishes and receives."""
    clients = {client.client: client for client in sample.clients}
    groups = {client: [clients[client]] for client in clients}
    for exchange in sample.exchanges:
        if exchange.publisher not in clients or exchange.recipient not in clients:
            continue
        one, other = clients[exchange.publisher], clients[exchange.recipient]
        into, joined = groups[one.client], groups[other.client]
        if into is not joined and 2 * exchange.messages >= min(_units([one]), _units([other])):
            into += joined
            for client in joined:
                groups[client.client] = into
    return list({id(group): group for group in groups.values()}.values())
