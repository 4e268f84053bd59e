"""The load meter: how busy each worker is, as the kernel accounts for its time.

A worker is busy while it runs or waits for a processor, and not while it sleeps. The workers count
nothing for this, and the figure of one that hangs is right too.
"""

import time

import trio

from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.placement import WorkerLoad
from sbus.broker.front.supervisor import Supervisor
from sbus.unix.process_usage import busy_seconds

SAMPLE_SECONDS = 1.0


class LoadMeter:
    """Of one bus. `busy_shares` are those of the last second, by worker: 0 to 1."""

    def __init__(self, supervisor: Supervisor, registry: ClientRegistry) -> None:
        self._supervisor = supervisor
        self._registry = registry
        self.busy_shares = [0.0] * len(supervisor.workers)
        self._before: dict[int, float] = {}
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

    async def run(self) -> None:
        """Sample the workers for ever."""
        while True:
            self.sample()
            await trio.sleep(SAMPLE_SECONDS)

    def sample(self) -> None:
        """Measure what the workers did since the last sample."""
        now = time.monotonic()
        seconds, self._sampled_at = now - self._sampled_at, now
        before, self._before = self._before, {}
        for worker in self._supervisor.workers:
            busy = busy_seconds(worker.pid) if worker.pid else None
            share = 0.0
            if busy is not None:
                self._before[worker.pid] = busy
                share = (busy - before.get(worker.pid, busy)) / max(seconds, 1e-3)
            self.busy_shares[worker.number] = min(max(share, 0.0), 1.0)
