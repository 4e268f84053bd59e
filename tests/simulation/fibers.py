"""Fibers: simulated processes, which may be paused or killed at any opcode of the product.

A fiber is a thread that runs only while the scheduler waits for it, so only one of them runs at a
time, and the scheduler alone decides which. A fiber is interrupted after so many entries into or
exits from the lock and then so many opcodes; from that point on it is traced. Then it pauses, or
dies: `Killed` is raised there, which nothing in the product catches.
"""

import _thread
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_PRODUCT = str(Path(__file__).resolve().parents[2] / "sbus")


class Killed(BaseException):
    """Ends a fiber at once, as SIGKILL ends a process."""


class Interruption(NamedTuple):
    """When a fiber is paused, or killed."""

    locks: int
    """So many times it enters or leaves the lock before."""
    opcodes: int
    """So many opcodes it executes then."""
    kills: bool


class Fiber:
    """One simulated process."""

    current: "Fiber | None" = None
    """The one that runs; None while the scheduler does."""

    def __init__(self, may_pause: Callable[["Fiber"], bool]) -> None:
        self._may_pause = may_pause
        self._may_run, self._has_stopped = _thread.allocate_lock(), _thread.allocate_lock()
        self._may_run.acquire()
        self._has_stopped.acquire()
        self._job: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._must_die = False
        self._interruption: Interruption | None = None
        self._opcodes_left = 0
        self.is_busy = False
        """It has paused amid a job."""
        self.is_dead = False
        self.waits_for_lock = False
        _thread.start_new_thread(self._main, ())

    # -- by the scheduler ----------------------------------------------------------------------
    def begin(self, job: Callable[[], None], interruption: Interruption | None) -> None:
        """Do a job until it is done, or the fiber pauses or dies."""
        assert not self.is_busy
        self._job, self._interruption = job, interruption
        self.is_busy = True
        self.go_on()

    def go_on(self) -> None:
        """Go on where the fiber has paused."""
        Fiber.current = self
        self._may_run.release()
        assert self._has_stopped.acquire(timeout=120), "a fiber does not stop"
        Fiber.current = None
        if self._error is not None:
            raise self._error

    def kill(self) -> None:
        """End a fiber, whether it has paused or has nothing to do."""
        if not self.is_dead:
            self._must_die = True
            if not self.is_busy:
                self._job = None
            self.go_on()

    def doom(self, opcodes: int) -> None:
        """Have the present job die before so many opcodes more."""
        self._interruption = Interruption(0, opcodes, kills=True)
        self._trace(opcodes)

    def let_be(self) -> None:
        """Do not interrupt the present job."""
        self._interruption = None
        self._opcodes_left = sys.maxsize

    @property
    def is_doomed(self) -> bool:
        """Whether it is to be killed in the present job."""
        return self._interruption is not None and self._interruption.kills

    # -- by the fiber --------------------------------------------------------------------------
    def _main(self) -> None:
        while not self.is_dead:
            self._may_run.acquire()
            try:
                if self._job is None:
                    raise Killed
                if self._interruption is not None and not self._interruption.locks:
                    self._trace(self._interruption.opcodes)
                self._job()
            except Killed:
                self.is_dead = True
            except BaseException as error:
                self._error, self.is_dead = error, True
            sys.settrace(None)
            self.is_busy = self.waits_for_lock = False
            self._has_stopped.release()

    def pause(self, *, waits_for_lock: bool = False) -> None:
        """Let the scheduler decide when to go on."""
        self.waits_for_lock = waits_for_lock
        self._has_stopped.release()
        self._may_run.acquire()
        self.waits_for_lock = False
        if self._must_die:
            raise Killed

    def at_lock(self) -> None:
        """The lock is about to be entered, or has been left."""
        due = self._interruption
        if due is None or not due.locks:
            return
        self._interruption = due._replace(locks=due.locks - 1)
        if due.locks == 1:
            self._trace(due.opcodes)

    def _trace(self, opcodes: int) -> None:
        self._opcodes_left = opcodes
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if is_product(frame):
                frame.f_trace = self._on_opcode
                frame.f_trace_opcodes = True
            frame = frame.f_back
        sys.settrace(self._on_call)

    def _on_call(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        if not is_product(frame):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self._on_opcode

    def _on_opcode(self, _frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "opcode":
            self._opcodes_left -= 1
            if self._opcodes_left <= 0:
                self._interrupt()
        return self._on_opcode

    def _interrupt(self) -> None:
        due, self._interruption = self._interruption, None
        sys.settrace(None)
        self._opcodes_left = sys.maxsize
        assert due is not None
        if due.kills:
            raise Killed
        if self._may_pause(self):
            self.pause()


def is_product(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PRODUCT)
