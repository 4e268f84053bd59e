"""Queries to workers: replies are collected, and nothing is waited for that will not come."""

from typing import cast

import msgspec
import trio
import trio.testing

from sbus.broker.admin.worker_queries import REPLY_SECONDS_MAX, WorkerQueries
from sbus.broker.front.supervised_worker import SupervisedWorker
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.queries import ActivityQuery
from sbus.broker.ipc.worker_protocol import QueryReply, RunQuery, WorkerReady

QUERY = ActivityQuery([1])


class Scene:
    """Two workers, and what they were asked; stands in for the supervisor."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.workers = [SupervisedWorker(number) for number in (0, 1)]
        for worker in self.workers:
            worker.note(WorkerReady())
        self.asked: list[tuple[int, RunQuery]] = []
        self.queries = WorkerQueries(cast(Supervisor, self))
        self.result: tuple[dict[int, str], list[int]] | None = None

    def send(self, worker: int, command: RunQuery) -> None:
        self.asked.append((worker, command))

    async def ask(self) -> None:
        async def run() -> None:
            self.result = await self.queries.ask_all(QUERY, str)

        self.nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()

    async def reply(self, worker: int, text: str, number: int = 1) -> None:
        self.queries.on_reply(worker, QueryReply(number, msgspec.msgpack.encode(text)))
        await trio.testing.wait_all_tasks_blocked()


async def test_a_successor_that_has_not_taken_over_is_not_asked(nursery: trio.Nursery) -> None:
    """It would answer that it has no clients."""
    scene = Scene(nursery)
    scene.workers[1].note_exit()
    scene.workers[1].note(WorkerReady())
    await scene.ask()
    assert scene.asked == [(0, RunQuery(1, QUERY))]
    await scene.reply(0, "a")
    assert scene.result == ({0: "a"}, [1])


async def test_a_worker_that_dies_is_not_waited_for(nursery: trio.Nursery) -> None:
    scene = Scene(nursery)
    await scene.ask()
    await scene.reply(0, "a")
    scene.queries.on_worker_death(1)
    await trio.testing.wait_all_tasks_blocked()
    assert scene.result == ({0: "a"}, [1])


async def test_a_late_reply_is_dropped(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    scene = Scene(nursery)
    await scene.ask()
    await scene.reply(0, "a")
    await trio.sleep(1.5 * REPLY_SECONDS_MAX)
    assert scene.result == ({0: "a"}, [1])
    scene.result = None
    await scene.ask()
    await scene.reply(1, "late")
    assert scene.result is None
    await scene.reply(0, "a", number=2)
    await scene.reply(1, "b", number=2)
    assert scene.result == ({0: "a", 1: "b"}, [])


async def test_no_worker_is_waited_for_if_none_is_asked(nursery: trio.Nursery) -> None:
    scene = Scene(nursery)
    scene.workers = []
    await scene.ask()
    assert scene.result == ({}, [])
