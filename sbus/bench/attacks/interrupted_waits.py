"""Closing a socket that lingers without waiting, in a program that has to go on.

The kernel ends such a wait when a signal is pending. So during the call an interval timer sends
this process signals, and the handler does nothing.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_INTERVAL_SECONDS: Final = 0.0001


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """While this lasts, no `close` of the main thread waits for a lingering socket. Not to be
    nested: there is one timer."""
    signal.signal(signal.SIGALRM, _ignore)
    signal.setitimer(signal.ITIMER_REAL, _INTERVAL_SECONDS, _INTERVAL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ignore(_number: int, _frame: object) -> None:
    """SIG_IGN would not do: a signal that is ignored is never pending."""
