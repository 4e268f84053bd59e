"""The callback timer: how long the front's tasks run without letting others run."""

import time

import trio

from sbus.shared.operation_times import MARK_SECONDS, OperationTimes

ADMINISTRATION = "administration"
"""The name of the tasks that answer administrators."""


class CallbackTimer(trio.abc.Instrument):
    """A *callback* is what a task does between two checkpoints. The first one that is timed begins
    now."""

    def __init__(self, operations: OperationTimes) -> None:
        self._operations = operations
        self._began_at = self._marked_at = time.perf_counter()
        operations.mark()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_at = time.perf_counter()
        if self._began_at > self._marked_at + MARK_SECONDS:
            self._marked_at = self._began_at
            self._operations.mark()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        kind = "answer" if task.name == ADMINISTRATION else "callback"
        self._operations.record(kind, time.perf_counter() - self._began_at, task.name)
