"""Keeping the kernel's waits short in calls that cannot be told not to wait.

The process that drops the last reference to a file closes it at the end of that system call. A
client decides what file that is by attaching its descriptor to a packet: it is closed by `recv`
when the descriptor is not asked for, and by `close` when the packet is still unread. Closing a TCP
socket with unsent data and SO_LINGER waits for as long as the client has chosen.

The kernel ends such a wait when a signal is pending. So during the call an interval timer sends
this process signals, and the handler does nothing. A call that closes many files is delayed once:
the signal stays pending until the call returns. A process that exits does not wait at all.

Only waits end early. The kernel's own work, such as freeing memory, is not interrupted.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERVAL_SECONDS: Final = 0.0001
"""Short beside a turn of a client, and long beside a call that does not wait."""


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """While this lasts, no system call of the main thread waits for much longer than
    `INTERVAL_SECONDS`. Not to be nested: there is one timer."""
    if signal.getsignal(signal.SIGALRM) is not _ignore:
        signal.signal(signal.SIGALRM, _ignore)
    signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS, INTERVAL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ignore(_number: int, _frame: object) -> None:
    """SIG_IGN would not do: a signal that is ignored is never pending."""
