"""The front's state of one worker: its process, and whether it serves."""

import signal
import time
from contextlib import suppress

from sbus.broker.ipc import worker_protocol as protocol
from sbus.broker.ipc.worker_link import WorkerLink
from sbus.unix.readiness import is_readable_within


class SupervisedWorker:
    """The process that has this number now, or had it last."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.link: WorkerLink | None = None
        """From the moment it is asked for until it has ended."""
        self.pid = 0
        self.pidfd = -1
        self.has_started = False
        self.is_succeeding = False
        """A process with this number has died, and no successor has taken over its clients yet."""
        self.has_quiesced = False
        self.settings_number = 0
        """Of the settings that it has applied; 0 for those of the start."""
        self.forked_at = 0.0
        """By `time.monotonic`."""
        self.deaths = 0
        self.restart_delay_seconds = 0.0

    @property
    def is_serving(self) -> bool:
        """Whether it may be given more clients."""
        return self.has_started and not self.is_succeeding

    def note(self, event: protocol.WorkerEvent) -> None:
        """Note what an event says of the worker's own life."""
        if isinstance(event, protocol.WorkerReady):
            self.has_started = True
        elif isinstance(event, protocol.TookOver):
            self.is_succeeding = False
        elif isinstance(event, protocol.WorkerQuiesced):
            self.has_quiesced = True
        elif isinstance(event, protocol.SettingsApplied):
            self.settings_number = max(self.settings_number, event.number)

    def note_exit(self) -> None:
        self.has_started, self.is_succeeding = False, True

    @property
    def is_running(self) -> bool:
        return self.link is not None

    @property
    def has_ended(self) -> bool:
        """Whether the kernel says that its process has ended; False once that was reported."""
        return self.pidfd >= 0 and is_readable_within(self.pidfd, 0)

    @property
    def age_seconds(self) -> float:
        """Since it was forked."""
        return time.monotonic() - self.forked_at

    def kill(self) -> None:
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):  # the event that it has exited is on its way
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
