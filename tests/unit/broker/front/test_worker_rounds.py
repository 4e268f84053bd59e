"""Rounds: the front waits for all workers, and no longer than until one of them fails."""

from typing import cast

import pytest
import trio
import trio.testing

from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.worker_rounds import WorkerRounds
from sbus.broker.ipc.upgrade_link import UpgradeFailed
from sbus.broker.ipc.worker_protocol import Done, Freeze, WorkerCommand


class FakeSupervisor:
    """Stands in for the succession, too."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, WorkerCommand]] = []
        self.ended: list[int] = []
        self.replaced = trio.Event()
        self.replaced.set()

    def running_workers(self) -> list[int]:
        return [0, 1]

    def send(self, worker: int, command: WorkerCommand, _fd: int | None = None) -> None:
        self.sent.append((worker, command))

    def ended_workers(self) -> list[int]:
        return self.ended

    async def wait_for_successors(self) -> None:
        await self.replaced.wait()


@pytest.fixture
def supervisor() -> FakeSupervisor:
    return FakeSupervisor()


@pytest.fixture
def rounds(supervisor: FakeSupervisor) -> WorkerRounds:
    return WorkerRounds(cast(Supervisor, supervisor))


class Round:
    """One round in a task of its own."""

    def __init__(self, nursery: trio.Nursery, rounds: WorkerRounds) -> None:
        self.outcome: str | None = None
        nursery.start_soon(self._run, rounds)

    async def _run(self, rounds: WorkerRounds) -> None:
        try:
            await rounds.run(Freeze)
            self.outcome = "done"
        except UpgradeFailed as error:
            self.outcome = str(error)

    async def ends(self) -> str | None:
        await trio.testing.wait_all_tasks_blocked()
        return self.outcome


async def test_a_round_ends_when_all_have_answered(
    nursery: trio.Nursery, supervisor: FakeSupervisor, rounds: WorkerRounds
) -> None:
    one = Round(nursery, rounds)
    assert await one.ends() is None
    assert supervisor.sent == [(0, Freeze(1)), (1, Freeze(1))]
    rounds.on_done(1, Done(1))
    assert await one.ends() is None
    rounds.on_done(0, Done(1))
    assert await one.ends() == "done"


async def test_an_answer_to_an_earlier_round_means_nothing(
    nursery: trio.Nursery, rounds: WorkerRounds
) -> None:
    with trio.move_on_after(0):
        await rounds.run(Freeze)
    one = Round(nursery, rounds)
    await one.ends()
    for worker in (0, 1):
        rounds.on_done(worker, Done(1, "too late"))
    assert await one.ends() is None
    for worker in (0, 1):
        rounds.on_done(worker, Done(2))
    assert await one.ends() == "done"


async def test_a_round_fails_at_once_if_a_worker_cannot_do_its_part(
    nursery: trio.Nursery, rounds: WorkerRounds
) -> None:
    one = Round(nursery, rounds)
    await one.ends()
    rounds.on_done(0, Done(1, "no room"))
    assert await one.ends() == "no room"


async def test_a_death_fails_the_round_and_all_that_follow(
    nursery: trio.Nursery, rounds: WorkerRounds
) -> None:
    rounds.on_worker_death(1)
    assert await Round(nursery, rounds).ends() == "worker 1 died"
    with pytest.raises(UpgradeFailed, match="worker 1 died"):
        rounds.check()
    await rounds.begin()
    rounds.check()


async def test_a_death_that_is_not_reported_yet_fails_the_check(
    supervisor: FakeSupervisor, rounds: WorkerRounds
) -> None:
    rounds.check()
    supervisor.ended = [1]
    with pytest.raises(UpgradeFailed, match="worker 1 died"):
        rounds.check()


async def test_no_round_begins_while_a_worker_is_replaced(
    nursery: trio.Nursery, supervisor: FakeSupervisor, rounds: WorkerRounds
) -> None:
    supervisor.replaced = trio.Event()
    rounds.on_worker_death(1)
    nursery.start_soon(rounds.begin)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(UpgradeFailed, match="worker 1 died"):
        rounds.check()
    supervisor.replaced.set()
    await trio.testing.wait_all_tasks_blocked()
    rounds.check()
