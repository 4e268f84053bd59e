"""The machine of a worker: everything that it does with its clients and the log.

It works in *ticks*. A tick takes what the poller found ready, does a bounded piece of what there is
to do, and says how long the poller may sleep before the next tick. Nothing in it waits. So the same
machine runs under the driver of a worker process and in tests.

In each tick clients get turns first. The log is walked when no client is ready and, while some are,
after every few ticks. So a backlog whose socket has room is sent before more is put into it.
"""

import time

from sbus.broker.ipc.worker_protocol import WorkerQuiesced
from sbus.broker.worker.command_handler import CommandHandler
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.scheduler import Scheduler
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.shared.operation_times import MARK_SECONDS

_COST_PER_TICK = 64
"""Of turns, after which clients that have sent something meanwhile are queued; a poll costs as much
as one or two units."""
_COST_PER_WALK = 256
"""Of turns, between two walks while clients are ready; and of a walk, before clients get turns."""


class WorkerMachine:
    """Of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        sequencer: Sequencer,
        subscriptions: Subscriptions,
        sessions: Sessions,
        scheduler: Scheduler,
        commands: CommandHandler,
    ) -> None:
        self._context = context
        self._eventfd = context.memory.eventfds[context.worker]
        self._link_fd = context.link.fileno()
        self._sequencer = sequencer
        self._subscriptions = subscriptions
        self._sessions = sessions
        self._scheduler = scheduler
        self._commands = commands
        self._cost = 0
        """Of turns since the log was last walked."""
        self.began_at = 0.0
        """The last tick, by `time.monotonic`."""
        self._mark_at = 0.0
        """When the next is due; see `OperationTimes`."""
        self._heartbeat_at = 0.0
        """When the next is due."""
        self._end_at = 0.0
        """When a worker that stops ends at the latest; 0 before it stops."""

    def poll(self, poller: Poller, seconds_max: float) -> list[tuple[int, int]]:
        """Sleep until a descriptor is ready, or the time is up; returns what `tick` is to be
        given."""
        if self._commands.end_code or self._sessions.is_frozen:
            return poller.poll(seconds_max)
        return self._scheduler.poll(poller, seconds_max)

    def tick(self, ready: list[tuple[int, int]]) -> float | None:
        """Do a piece of work; `ready` is what the poller returned. Returns for how many seconds the
        poller may sleep now, None when the worker ends."""
        self.began_at = now = time.monotonic()
        if now >= self._mark_at:
            self._mark_at = now + MARK_SECONDS
            self._context.operations.mark()
        has_command = False
        for fd, events in ready:
            if fd == self._eventfd:
                self._look_again()
            elif fd == self._link_fd:
                has_command = True
            else:
                self._sessions.on_ready(fd, events)
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._context.settings.limits.heartbeat_seconds
            self._context.memory.record_heartbeat(self._context.worker)
            if not self._sessions.is_frozen:
                self._sessions.send_buffers.shrink_unused()
        if self._commands.end_code:
            if has_command and not self._receive_commands():
                return None
            return self._tick_to_the_end(now)
        if self._sessions.is_frozen:
            return self._tick_frozen(now, has_command)
        self._scheduler.retry_due()
        cost = self._scheduler.give_turns(_COST_PER_TICK)
        is_busy = cost >= _COST_PER_TICK
        self._cost += cost
        # After the turns, so that a query finds clients that were woken waiting again.
        if has_command and not self._receive_commands():
            return None
        if is_busy and self._cost < _COST_PER_WALK:
            return 0.0
        commands_seconds = self._commands.go_on(now)
        made = self._subscriptions.make_background_step()
        if made is not None:
            self._scheduler.charge(*made)
        if is_busy or made is not None:
            self._walk()
            return 0.0
        if not self._sequencer.is_caught_up:
            self._walk()
            if not self._sequencer.is_caught_up:
                return 0.0
        if self._scheduler.has_quiesced():
            self._context.link.send(WorkerQuiesced())
        self._sequencer.share_statistics()
        if has_command:
            return 0.0  # what it caused may be ready
        return min(self._scheduler.seconds_until_due(), self._heartbeat_at - now, commands_seconds)

    def _receive_commands(self) -> bool:
        """Carry out some commands; False when this worker must end at once."""
        goes_on = self._commands.receive() and not self._commands.has_left
        if self._commands.front_has_ended and self._context.memory.is_kept:
            self._sessions.is_frozen = True  # the next bus serves the clients
        if self._commands.front_has_ended and not self._sessions.is_frozen:
            while self._sessions.end_some("bus-failed"):
                pass
        return goes_on

    def _tick_frozen(self, now: float, has_command: bool) -> float | None:
        """Carry out commands, and deliver what has its place in the order."""
        if has_command and not self._receive_commands():
            return None
        commands_seconds = self._commands.go_on(now)
        made = self._subscriptions.make_background_step()
        if not self._sequencer.is_caught_up:
            self._walk()
        if has_command or made is not None or not self._sequencer.is_caught_up:
            return 0.0
        return min(self._heartbeat_at - now, commands_seconds)

    def _look_again(self) -> None:
        """Something is destined to this worker, or there may be room for what waits."""
        self._sequencer.look_again()
        self._subscriptions.retry()
        self._scheduler.retry_woken()

    def _walk(self) -> None:
        """Walk a piece of the log, and charge that to the publishers' users."""
        self._cost = 0
        self._sequencer.walk_on(_COST_PER_WALK)
        for account, cost in self._sequencer.take_walking_cost().items():
            self._scheduler.charge(account, cost)
        self._sequencer.share_statistics()

    def _tick_to_the_end(self, now: float) -> float | None:
        """Deliver what is left: what the log has, then backlogs, then why it ends, until the time
        is up."""
        if not self._end_at:
            self._end_at = now + self._context.settings.limits.stop_seconds_max / 2
        if not self._sequencer.is_caught_up:
            self._walk()
            return 0.0
        self._scheduler.retry_due()
        if self._scheduler.give_backlog_turn():
            return 0.0
        if now < self._end_at and self._sessions.have_backlogs():
            return min(self._scheduler.seconds_until_due(), self._end_at - now)
        if self._sessions.end_some(self._commands.end_code):
            return 0.0
        return self._end_at - now if self._sessions.have_untold() and now < self._end_at else None
