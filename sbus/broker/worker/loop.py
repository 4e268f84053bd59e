"""The worker's loop: it polls the clients, gives turns, walks the log and sleeps.

One task does all of this. A client whose socket is ready enters the fair queue, and stays there
until its socket is empty. Polling is cheap beside a turn, so it is repeated after little work.
"""

import os

import trio

from sbus.broker.ipc.worker_protocol import WorkerQuiesced
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.scheduler import Scheduler
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.subscriptions import Subscriptions

_COST_PER_POLL = 64
"""Work after which clients that have sent something meanwhile are queued; a poll costs as much as
one or two units."""
_COST_PER_CHECKPOINT = 1_024
"""Work after which the other tasks run: about a millisecond."""


class WorkerLoop:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        sessions: Sessions,
        scheduler: Scheduler,
        poller: Poller,
    ) -> None:
        self._link = context.link
        self._eventfd = context.memory.eventfds[context.worker]
        self._sequencer = sequencer
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._scheduler = scheduler
        self._poller = poller
        self._is_quiescing = False
        self._is_stopping = False

    def quiesce(self) -> None:
        """Read no more from any client; `WorkerQuiesced` is reported when that is so."""
        self._scheduler.quiesce()
        self._is_quiescing = True

    def stop(self) -> None:
        """Let `serve` end."""
        self._is_stopping = True

    async def serve(self) -> None:
        """Give turns while clients are ready; otherwise walk the log, and sleep. When told to stop,
        deliver what is left."""
        cost = 0
        while not self._is_stopping:
            cost += self._give_turns(_COST_PER_CHECKPOINT - cost)
            if self._subscriptions.make_background_step() or cost >= _COST_PER_CHECKPOINT:
                cost = 0
                self._sequencer.barrier()
                self._charge_walk()
                self._sequencer.share_statistics()
                await trio.lowlevel.checkpoint()
                continue
            if self._is_quiescing:
                self._report_quiesced()
            if self._sequencer.walk_before_sleep():
                cost = 0
                self._sequencer.share_statistics()
                await self._poller.sleep(self._scheduler.seconds_until_due())
            cost += 1 + self._charge_walk()
        while not self._sequencer.walk_before_sleep():
            await trio.lowlevel.checkpoint()

    async def send_backlogs(self) -> None:
        """Give turns to backlogs only: no client is read any more."""
        while True:
            while self._scheduler.give_backlog_turn():
                await trio.lowlevel.checkpoint()
            await self._poller.sleep_regardless()

    def _give_turns(self, cost_max: int) -> int:
        """Give turns until no client is ready or they have cost enough; returns the cost."""
        cost, polled_at = 0, -_COST_PER_POLL
        while cost < cost_max:
            if cost - polled_at >= _COST_PER_POLL:
                polled_at = cost
                self._poll()
                self._scheduler.retry_due()
            turn_cost = self._scheduler.give_turn()
            if turn_cost is None:
                break
            cost += turn_cost
        return cost

    def _poll(self) -> None:
        """Queue the clients that have become ready."""
        for fd, _ in self._poller.poll():
            if fd == self._eventfd:
                os.eventfd_read(self._eventfd)
                self._subscriptions.retry()
                self._scheduler.retry_woken()
            else:
                self._sessions.on_readable(fd)

    def _charge_walk(self) -> int:
        """Charge what was walked to the publishers' users; returns the cost."""
        total = 0
        for uid, cost in self._sequencer.take_walking_cost().items():
            self._scheduler.charge(uid, cost)
            total += cost
        return total

    def _report_quiesced(self) -> None:
        if not self._scheduler.has_room_waiters():
            self._is_quiescing = False
            self._link.send(WorkerQuiesced())
