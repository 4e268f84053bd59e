"""Rounds: all workers carry out a command, and the front waits until all of them have."""

from collections.abc import Callable

import trio

from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.upgrade_link import UpgradeFailed
from sbus.broker.ipc.worker_protocol import Done, WorkerCommand


class WorkerRounds:
    """Of one bus. There is one round at a time."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._number = 0
        """Of the last round. An answer to an earlier one, which was given up, means nothing."""
        self._unanswered: set[int] = set()
        self._why_not = ""
        self.most_changes = 0, 0
        """That one worker recorded in this round, and the user with most of them."""
        self._changed = trio.lowlevel.ParkingLot()

    def on_done(self, worker: int, event: Done) -> None:
        if event.number == self._number:
            self._unanswered.discard(worker)
            self.most_changes = max(self.most_changes, (event.changes, event.uid))
            self._fail(event.why_not)

    def on_worker_death(self, worker: int) -> None:
        self._fail(f"worker {worker} died")

    def _fail(self, why_not: str) -> None:
        self._why_not = self._why_not or why_not
        self._changed.unpark_all()

    async def begin(self) -> None:
        """Wait until all workers serve; from then on a worker's death fails every round."""
        await self._supervisor.wait_for_successors()
        self._why_not = ""

    async def run(self, command: Callable[[int], WorkerCommand]) -> None:
        """Have all workers carry out a command, which is made with the number of the round. Raises
        UpgradeFailed."""
        await self.run_each(lambda number, _worker: (command(number), None))

    async def run_each(
        self, command_for: Callable[[int, int], tuple[WorkerCommand, int | None]]
    ) -> None:
        """The same with a command for each worker, and a descriptor, which is borrowed. Raises
        UpgradeFailed."""
        self._number += 1
        self.most_changes = 0, 0
        self._unanswered = set(self._supervisor.running_workers())
        for worker in sorted(self._unanswered):
            self._supervisor.send(worker, *command_for(self._number, worker))
        while self._unanswered and not self._why_not:
            await self._changed.park()
        self.check()

    def check(self) -> None:
        """Raise UpgradeFailed if a worker has died since `begin`, or could not do its part. The
        fork server reports a death some milliseconds later than the kernel."""
        for worker in self._supervisor.ended_workers():
            self.on_worker_death(worker)
        if self._why_not:
            raise UpgradeFailed(self._why_not)
