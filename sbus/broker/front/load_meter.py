"""The load meter: how busy each worker is, as the kernel accounts for its time.

A worker either runs, waits for a processor, or sleeps. Waiting is not its load but that of others:

    busy share = time that it ran / (time that it ran + time that it slept)

So a worker that never sleeps is wholly busy, however little it gets to run. The workers count
nothing for this, and the figure of one that hangs is right too.
"""

import time

from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.placement import WorkerLoad
from sbus.broker.front.supervisor import Supervisor
from sbus.unix.process_usage import ScheduledTime, scheduled_time

SAMPLE_SECONDS = 1.0
"""How often `sample` is to be called."""


class LoadMeter:
    """Of one bus. `busy_shares` are those between the last two samples, by worker: 0 to 1; and what
    is expected of workers between which clients were moved since."""

    def __init__(self, supervisor: Supervisor, registry: ClientRegistry) -> None:
        self._supervisor = supervisor
        self._registry = registry
        self.busy_shares = [0.0] * len(supervisor.workers)
        self._before: dict[int, ScheduledTime] = {}
        """By process id."""
        self._sampled_at = time.monotonic()

    def loads(self) -> list[WorkerLoad]:
        """The load of every worker, by its number."""
        return [
            WorkerLoad(worker, busy_share, clients)
            for worker, (busy_share, clients) in enumerate(
                zip(self.busy_shares, self._registry.by_worker, strict=True)
            )
        ]

    def sample(self) -> None:
        """Measure what the workers did since the last sample, or since `restart`."""
        before, sampled_at = self._before, self._sampled_at
        self.restart()
        seconds = self._sampled_at - sampled_at
        for worker in self._supervisor.workers:
            start, end = before.get(worker.pid), self._before.get(worker.pid)
            self.busy_shares[worker.number] = (
                busy_share(start, end, seconds) if start and end else 0.0
            )

    def expect_moved(self, source: int, target: int, part: float) -> None:
        """Another worker does this part of what a worker does, until that is measured."""
        moved_share = self.busy_shares[source] * part
        self.busy_shares[source] -= moved_share
        self.busy_shares[target] = min(1.0, self.busy_shares[target] + moved_share)

    def restart(self) -> None:
        """What the workers did until now is not part of the next sample."""
        self._sampled_at = time.monotonic()
        times = {worker.pid: scheduled_time(worker.pid) for worker in self._supervisor.workers}
        self._before = {pid: time for pid, time in times.items() if time is not None}


def busy_share(before: ScheduledTime, after: ScheduledTime, seconds: float) -> float:
    """The busy share between two measurements that are this far apart."""
    ran = after.running_seconds - before.running_seconds
    slept = seconds - ran - (after.waiting_seconds - before.waiting_seconds)
    return ran / (ran + max(slept, 0.0)) if ran > 0 else 0.0
