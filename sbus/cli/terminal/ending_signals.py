"""Signals that end a program, as an exception, so that it can clean up."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def exiting_on_signals() -> Iterator[None]:
    """Leave the block on SIGTERM and SIGHUP, unless this program is to ignore them."""

    def end(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    ending = (signal.SIGTERM, signal.SIGHUP)
    before = {it: signal.getsignal(it) for it in ending}
    for signum, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(signum, end)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
