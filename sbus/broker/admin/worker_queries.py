"""Queries to workers: who has not replied yet, and for how long that is waited for."""

from typing import Final, TypeVar

import msgspec
import trio

from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.queries import Query
from sbus.broker.ipc.worker_protocol import QueryReply, RunQuery

REPLY_SECONDS_MAX: Final = 2.0
"""Long enough for a worker in the midst of the longest turn; a hung one is named in the result."""

T = TypeVar("T")


class _PendingQuery:
    def __init__(self, workers: set[int]) -> None:
        self.unanswered = workers
        self.replies: dict[int, bytes] = {}
        self.done = trio.Event()

    def settle(self, worker: int) -> None:
        """Wait for this worker no more."""
        self.unanswered.discard(worker)
        if not self.unanswered:
            self.done.set()


class WorkerQueries:
    """Asks the workers of one bus."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._last_number = 0
        self._pending: dict[int, _PendingQuery] = {}

    async def ask_all(self, query: Query, kind: type[T]) -> tuple[dict[int, T], list[int]]:
        """Ask all workers the same; see `ask`."""
        return await self.ask(dict.fromkeys(range(len(self._supervisor.workers)), query), kind)

    async def ask(self, queries: dict[int, Query], kind: type[T]) -> tuple[dict[int, T], list[int]]:
        """Ask workers, each its own query. Returns the replies by worker, and the workers that gave
        none in time, or do not serve."""
        self._last_number += 1
        number, pending = self._last_number, _PendingQuery(set(queries))
        self._pending[number] = pending
        for worker, query in queries.items():
            if self._supervisor.workers[worker].is_serving:
                self._supervisor.send(worker, RunQuery(number, query))
            else:  # a successor has no clients to speak of before it has taken over
                pending.settle(worker)
        try:
            with trio.move_on_after(REPLY_SECONDS_MAX):
                if queries:
                    await pending.done.wait()
        finally:
            del self._pending[number]
        replies = {
            worker: msgspec.msgpack.decode(data, type=kind)
            for worker, data in sorted(pending.replies.items())
        }
        return replies, [worker for worker in queries if worker not in replies]

    def on_reply(self, worker: int, reply: QueryReply) -> None:
        """A worker replied. Nobody waits for a late reply any more: it is dropped."""
        pending = self._pending.get(reply.number)
        if pending is not None:
            pending.replies[worker] = reply.data
            pending.settle(worker)

    def on_worker_death(self, worker: int) -> None:
        for pending in self._pending.values():
            pending.settle(worker)
