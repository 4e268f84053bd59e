"""Signals that arrive before the bus can handle them.

From the moment that something exists which must be removed again, until the bus has handlers of
its own, a signal that asks for the end is only noted here; nothing is torn in the middle. It is
sent once more when the bus can act on it. This module does not know how a bus stops.
"""

import os
import signal
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """Takes over the signals that end a bus; `requested` once one of them has come.

    SIGHUP is turned into SIGTERM for good: the bus, which takes over the others, need not know it.
    """

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGHUP, self._terminate)

    def request(self) -> None:
        self.requested = True

    def pass_on(self) -> None:
        """Send SIGTERM, whose handler is the bus's by now, if a stop was requested before."""
        if self.requested:
            os.kill(os.getpid(), signal.SIGTERM)

    def ignore_further(self) -> None:
        """The end has begun: signals do not interrupt it."""
        for signum in ENDING:
            signal.signal(signum, signal.SIG_IGN)

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        self.requested = True

    def _terminate(self, _signum: int, _frame: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
