"""Placement: which worker serves a client.

A message between clients of one worker never leaves its process, and on an idle host a second
worker costs every message a second wake-up. So with `placement = "load"` few workers serve while
few suffice:

- The clients of one user come together on a worker that is not busy. A user without such a worker
  shares one that serves already.
- A worker that serves nobody is used when all others are busy. When all workers are busy, the least
  busy one is chosen.
- While other users are connected, one user leaves them a worker that serves none of its clients.

With `placement = "spread"` every worker has as many clients as any other.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from sbus.broker.config.settings import BusSettings


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


class Placement:
    """Decides for one bus. `loads` returns the load of every worker."""

    def __init__(self, settings: BusSettings, loads: Callable[[], Sequence[WorkerLoad]]) -> None:
        self._loads = loads
        self._is_by_load = settings.placement == "load"
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
        if not self._is_by_load:
            return min(candidates, key=lambda load: sum(load.clients.values())).worker
        permitted = [load for load in candidates if may_use(uid, load, loads)]
        return min(permitted or candidates, key=lambda load: self._rank(uid, load)).worker

    def _rank(self, uid: int, load: WorkerLoad) -> tuple[float, ...]:
        if self.is_busy(load):
            return 1, load.busy_share, sum(load.clients.values())
        return 0, uid not in load.clients, not load.is_used, load.worker


def may_use(uid: int, load: WorkerLoad, loads: Sequence[WorkerLoad]) -> bool:
    """Whether this user leaves a worker to other users if it has clients on this one."""
    if uid in load.clients:
        return True
    others_are_connected = any(other.clients.keys() - {uid} for other in loads)
    used = sum(uid in other.clients for other in loads) + 1
    return used < len(loads) or not others_are_connected
