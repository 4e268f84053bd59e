"""Simulations of a log that is kept for a successor, with little room.

The clients of one worker are sent short messages, so that it copies them from the log before it
walks them. It stops there for a while, and may die. Meanwhile another one fills the log: if several
did, the first one that found no room would stop the others.
"""

import msgspec

from tests.simulation.clients import SimulatedClient
from tests.simulation.fibers import Fiber
from tests.simulation.plan import Plan, log_bytes_min, make_plan
from tests.simulation.workers import SimulatedWorker
from tests.simulation.world import World

_WORKERS = 3
_DYING = 2
"""The worker that dies."""
_DEATHS_MAX = 6
_STOP_STEPS = (20, 40, 60)
_KEY_FOR_IT = b"b/x"
_KEYS = (b"a", b"a/b", b"a/b/c")
_PATTERNS = (b"a", b"a/", b"a/*")
_BATCH_PACKETS = 2
_BACKLOG_MESSAGES = 1000
_BYTES = 500
"""Of the messages of others: two dozens of them fill the log."""


class KeptLogWorld(World):
    """Clients belong to the workers in turn. Those of one worker publish, some of them for the
    worker that dies."""

    _resume_at = 0
    """The step in which the dying worker goes on."""

    def _make_plan(self) -> Plan:
        plan = make_plan(self.chance)
        limits = msgspec.structs.replace(
            plan.limits,
            batch_packets_max=_BATCH_PACKETS,
            log_bytes=log_bytes_min(_BATCH_PACKETS),
            backlog_messages_max=_BACKLOG_MESSAGES,
        )
        return plan._replace(
            workers=_WORKERS,
            clients=7,
            steps=1200,
            deaths_max=_DEATHS_MAX,
            interruptions=0,
            limits=limits,
        )

    def _begin_faults(self) -> None:
        super()._begin_faults()
        self.lock.on_copied = self._stop
        self._has_names = False

    def _stop(self, fiber: Fiber) -> None:
        worker = self.front.workers[_DYING].process
        is_dying = worker is not None and worker.fiber is fiber
        if is_dying and self._is_faulty and self.deaths < _DEATHS_MAX:
            self._resume_at = self._step + self.chance.choice(_STOP_STEPS)
            fiber.pause()

    def _schedule(self, worker: SimulatedWorker | None) -> None:
        """The dying worker may die where it has stopped."""
        if (
            self._is_faulty
            and worker is not None
            and worker.number == _DYING
            and worker.fiber.is_busy
        ):
            if self._step < self._resume_at:
                return
            if self.deaths < _DEATHS_MAX and self.chance.random() < 0.5:
                worker.kill()
                self._note_death()
                return
        super()._schedule(worker)

    def _kill(self) -> None:
        """No worker dies elsewhere."""

    def _move(self) -> None:
        """Clients stay where they are."""

    def _worker_of_next(self, serving: list[int]) -> int:
        return serving[len(self.clients) % len(serving)]

    def _pattern(self, client: SimulatedClient) -> bytes:
        served = self.front.registry.get(client.number)
        is_there = served is not None and served.worker == _DYING
        return _KEY_FOR_IT if is_there else self.chance.choice(_PATTERNS)

    def _let_client_publish(self, client: SimulatedClient) -> None:
        if client.number % _WORKERS == 2:
            super()._let_client_publish(client)

    def _size(self, client: SimulatedClient) -> int:
        return 0 if client.number % 6 == 5 else _BYTES

    def _key(self, client: SimulatedClient) -> bytes:
        return _KEY_FOR_IT if client.number % 6 == 5 else self.chance.choice(_KEYS)
