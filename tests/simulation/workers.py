"""Simulated workers: whole machines, each in a fiber of its own, with one lock for all.

A worker that dies leaves what a killed process leaves: what it has stored and sent. Its sockets are
closed, and the lock is free if it had it.
"""

import os
import socket
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from sbus.broker.config.settings import BusSettings
from sbus.broker.ipc.worker_link import send_event
from sbus.broker.ipc.worker_protocol import WorkerReady
from sbus.broker.worker import sessions as sessions_module
from sbus.broker.worker.log_walker import LogWalker
from sbus.broker.worker.ordinary_step import PythonStep
from sbus.broker.worker.presence_steps import NameChange, PresenceSteps
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.wait_queue import Reason, Wait
from sbus.shared.log_block import LogBlock
from sbus.shared.log_window import base_of
from sbus.shared.shared_memory import (
    COMPACTION_WANTED,
    LOG_WAITERS,
    SELECTOR,
    WAITING,
    MemoryLock,
    SharedMemory,
)
from sbus.shared.subscription_table import SubscriptionTable, encode_record
from tests.fuzz.one_process_bus import SteppedWorker
from tests.simulation.fibers import Fiber, Interruption
from tests.support import compiled_step
from tests.support.dying_child import dies


class SimulatedLock(MemoryLock):
    """The lock of the simulated processes. Its holder may be paused, or die."""

    def __init__(self, memory: SharedMemory) -> None:
        lock = memory.lock
        super().__init__(memory.fd, lock.words, lock.block_words)
        self.holder: object = None
        self.placing: list[bytes] = []
        """Messages that get their place if the present critical section takes effect."""
        self.placed: list[bytes] = []
        """All messages that have their place, in the total order."""
        self.announcing: list[bytes] = []
        self.announced: list[bytes] = []
        """Those of them that the bus itself has published, also by a worker in C."""
        self.on_enter: Callable[[Fiber], None] = lambda _: None
        """Called when a fiber has entered it."""
        self.on_copied: Callable[[Fiber], None] = lambda _: None
        """Called when a fiber has copied log blocks, before it walks the copy."""
        self.open()

    def try_acquire(self) -> bool:
        return self.holder is None and super().try_acquire()

    def __enter__(self) -> memoryview:
        fiber = Fiber.current
        if fiber is not None:
            fiber.at_lock()
            while self.holder is not None:
                fiber.pause(waits_for_lock=True)
        assert self.holder is None, "the front would wait for the lock"
        self.holder = fiber or self
        self.placing, self.announcing = [], []
        words = super().__enter__()
        if fiber is not None:
            self.on_enter(fiber)
        return words

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        spare = self._spare
        try:
            super().__exit__(kind, *details)
        finally:
            if kind is None and self.words[SELECTOR] == spare:
                self.placed += self.placing
                self.announced += self.announcing
        self.holder = None
        if kind is None and Fiber.current is not None:
            Fiber.current.at_lock()

    def committed(self) -> memoryview:
        """The control words as the last critical section that took effect has left them."""
        return self._copies[self.words[SELECTOR]]

    def free(self, fiber: Fiber) -> None:
        """Its holder may have died."""
        if self.holder is fiber:
            self.holder = None


class SimulatedSocket(socket.socket):
    """The bus's end of a connection, of one worker. Its process closes it when it dies."""

    opened: "list[SimulatedSocket]"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        SimulatedSocket.opened.append(self)


class _SocketModule:
    AF_UNIX, SOCK_SEQPACKET = socket.AF_UNIX, socket.SOCK_SEQPACKET
    socket = SimulatedSocket


def _append(
    self: Sequencer, words: memoryview, batch: PublishBatch, log_block: LogBlock | None
) -> tuple[int, Wait | None]:
    woken, wait = _real_append(self, words, batch, log_block)
    lock = self._lock
    assert isinstance(lock, SimulatedLock)
    if wait is None or wait.reason is Reason.STALL:
        lock.placing = [packet for packet, _, _ in batch.messages]
    return woken, wait


def _append_to_table(
    self: SubscriptionTable, words: memoryview, data: bytes, *arguments: Any, **options: Any
) -> bool:
    """A record about a name is journalled with the messages that tell of it."""
    has_room = _real_append_to_table(self, words, data, *arguments, **options)
    lock, change = self._memory.lock, _changes.get(data)
    if has_room and change is not None and isinstance(lock, SimulatedLock):
        lock.placing = lock.announcing = [packet for _, packet in change.messages]
    return has_room


def _place_change(
    self: PresenceSteps, change: NameChange, *, again: bool = False
) -> tuple[int, Wait | None] | None:
    _changes[encode_record(change.record)] = change
    return _real_place_change(self, change, again=again)


def _walk_piece(self: LogWalker, piece: bytes) -> None:
    lock = self._memory.lock
    if Fiber.current is not None and isinstance(lock, SimulatedLock):
        lock.on_copied(Fiber.current)
    _real_walk_piece(self, piece)


_changes: dict[bytes, NameChange] = {}
"""By the records of all names that were tried to be journalled; each is tried by one worker."""
_real_append_to_table = SubscriptionTable.append
_real_place_change = PresenceSteps._place
patch.object(SubscriptionTable, "append", _append_to_table).start()
patch.object(PresenceSteps, "_place", _place_change).start()
_real_append = Sequencer._append
patch.object(sessions_module, "socket", _SocketModule).start()
patch.object(Sequencer, "_append", _append).start()
_real_walk_piece = LogWalker.walk_piece
patch.object(LogWalker, "walk_piece", _walk_piece).start()


class SimulatedWorker:
    """One process with one number; `link` is its end of its link to the front."""

    def __init__(
        self, number: int, memory: SharedMemory, settings: BusSettings, link: socket.socket
    ) -> None:
        self.number = number
        lock = memory.lock
        assert isinstance(lock, SimulatedLock)
        self.lock = lock
        self._memfd = memory.fd
        self._workers = memory.workers
        self._sockets: list[SimulatedSocket] = []
        send_event(link, WorkerReady())
        self._stepped = SteppedWorker(number, memory, settings, link)
        self.parts = self._stepped.parts
        self._is_python = isinstance(self.parts.sequencer._step, PythonStep)
        self.fiber = Fiber(self._may_pause)
        self._has_started = False
        self.due_at = 0.0
        """When its next tick is due, if nothing becomes ready before."""
        self.has_more = True
        """Its last tick has not done all that there was to do."""
        self._start: Callable[[], bool] | None = None
        """What it does before its first tick, once it may begin."""
        self.stopped_until = 0
        """It is not scheduled before this step of the simulation."""

    def _may_pause(self, fiber: Fiber) -> bool:
        """The compiled step does not look at the simulated lock, so nobody may pause amid it."""
        return self._is_python or self.lock.holder is not fiber

    def begin(self, *, is_first: bool) -> None:
        """It may begin to serve, as the first worker of its number or as a successor."""
        self._start = self.parts.start if is_first else self.parts.succeed

    @property
    def may_begin(self) -> bool:
        return self._start is not None

    def is_ready(self) -> bool:
        """Whether there is something to do: a piece of a tick, what the poller has, or a timer."""
        if self.fiber.is_busy:
            return not (self.fiber.waits_for_lock and self.lock.holder is not None)
        return self.may_begin and (time.monotonic() >= self.due_at or self._stepped.has_ready())

    def advance(self, interruption: Interruption | None) -> None:
        """Go on with a tick, or begin one."""
        SimulatedSocket.opened = self._sockets
        if self.fiber.is_busy:
            self.fiber.go_on()
        else:
            self.fiber.begin(self._tick, interruption)
        self._clean_up()

    def check_wakes(self) -> None:
        """Raise AssertionError where a client waits for room and nothing will wake this worker."""
        if self.has_more or self._stepped.has_ready():
            return
        if self.parts.wait_queue.has_room_waiters():
            with self.lock as words:
                waiting = words[WAITING]
                for other in range(self._workers):
                    waiting |= words[base_of(other) + LOG_WAITERS]
                is_due = waiting >> self.number & 1 or words[COMPACTION_WANTED]
            assert is_due, f"nobody wakes worker {self.number}, whose clients wait for room"

    def may_die_in_child(self) -> bool:
        """Whether `die_in_child` may be called: it begins with a tick, which must not wait."""
        return self._has_started and not self.fiber.is_busy and self.lock.holder is None

    def die_in_child(self, store: int) -> None:
        """Have a child process do a tick and end before the compiled step makes this store in the
        shared memory, or when the tick is done. Then this worker is dead."""

        def act() -> None:
            compiled_step.die_at_store(store)
            self._stepped.tick()

        dies(self._memfd, self.lock.fd, act)
        self.kill()

    def _tick(self) -> None:
        if not self._has_started:
            assert self._start is not None
            assert self._start()
            self._has_started = True
        seconds_max = self._stepped.tick()
        self.has_more = not seconds_max
        self.due_at = time.monotonic() + seconds_max

    def kill(self) -> None:
        """Kill the process, wherever it is."""
        if not self.fiber.is_dead:
            self.fiber.kill()
            self._clean_up()

    def _clean_up(self) -> None:
        """What the kernel does for a dead process."""
        if not self.fiber.is_dead:
            return
        self.lock.free(self.fiber)
        taken = {sock.fileno() for sock in self._sockets}
        for _, fd in self.parts.commands._moves.inheritance._clients:
            if fd not in taken:
                os.close(fd)
        for sock in self._sockets:
            sock.close()
        self._stepped.die()
