"""When the bus ends: on a signal, with its last client, or when the time for draining is over."""

import signal
from typing import Final

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.client_registry import ClientRegistry
from sbus.errors import SbusError
from sbus.protocol.codes import END_TEXTS
from sbus.protocol.events import BusStopping, Draining
from sbus.unix.notify import Notifier

RESTART: Final = signal.SIGUSR1
"""The `RestartKillSignal=` of the unit."""


class Shutdown:
    """Decides when one bus ends. Clients are admitted in `admission_scope`, and administrators in
    `administration_scope`. A new bus prepares for the clients of another in `preparation_scope`."""

    def __init__(
        self,
        registry: ClientRegistry,
        settings: BusSettings,
        events: EventEmitter,
        notifier: Notifier,
    ) -> None:
        self._registry = registry
        self._events = events
        self._notifier = notifier
        self.is_draining = False
        self.is_handed_over = False
        """Another bus serves the clients."""
        self.is_restarting = False
        """The service manager starts the bus again, which is to go on with its clients."""
        self.admission_scope = trio.CancelScope()
        self.administration_scope = trio.CancelScope()
        self.preparation_scope = trio.CancelScope()
        self._requested = trio.Event()
        self._hand_over_finished = trio.Event()
        self._failure: SbusError | None = None
        self._deadline = trio.CancelScope()
        self.apply_settings(settings)

    def apply_settings(self, settings: BusSettings) -> None:
        self._exit_when_empty = settings.exit_when_empty

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Have signals end the bus."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, RESTART) as signals:
            task_status.started()
            async for signum in signals:
                self.is_restarting = self.is_restarting or signum == RESTART
                self._requested.set()
                self.preparation_scope.cancel()

    @property
    def code(self) -> str:
        """What clients are told that are still connected when the bus ends."""
        return "draining" if self._deadline.cancelled_caught else "stopping"

    @property
    def why(self) -> str:
        """The same, for people."""
        return END_TEXTS[self.code]

    def drain(self, timeout_seconds: float | None) -> None:
        """Admit no more clients; the bus ends with the last one, or when the time is up."""
        self.is_draining = True
        left = len(self._registry)
        self._notifier.status(f"Admits no more clients, {left} are left")
        self._events.emit(Draining(clients=left))
        self.admission_scope.cancel()
        self.check_empty()
        if timeout_seconds is not None:
            deadline = trio.current_time() + timeout_seconds
            self._deadline.deadline = min(self._deadline.deadline, deadline)

    @property
    def is_ending(self) -> bool:
        """Whether the bus has been told to end."""
        return self._requested.is_set()

    def hand_over(self) -> None:
        """Another process has taken over the bus: leave new connections to it."""
        self.is_handed_over = True
        self.administration_scope.cancel()

    def finish_hand_over(self) -> None:
        """End this process, which has handed the bus over."""
        self._requested.set()
        self._hand_over_finished.set()

    def fail(self, error: SbusError) -> None:
        """The bus that took over has ended at once: end this process with this error, or as it was
        told to."""
        self.is_handed_over = False
        if not self.is_ending:
            self._failure = error
        self.finish_hand_over()

    def check_empty(self) -> None:
        """End the bus if the last client has left and that is a reason to end."""
        if not self._registry and (self._exit_when_empty or self.is_draining):
            self._requested.set()

    async def wait(self) -> None:
        """Wait until the bus has to end, and announce it, unless another one goes on. Raises
        SbusError."""
        with self._deadline:
            await self._requested.wait()
        if self.is_handed_over:
            # A stop that comes now does not keep this process from announcing the new bus.
            await self._hand_over_finished.wait()
        if self._failure is not None:
            raise self._failure
        if self.is_handed_over:
            return
        clients = len(self._registry)
        self._notifier.stopping(f"Stopping, with {clients} client{'s' * (clients != 1)}")
        self._events.emit(BusStopping(clients=clients))
        self.admission_scope.cancel()
