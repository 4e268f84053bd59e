"""Waiting for one descriptor, whatever its number: select(2) takes none from 1,024 on."""

import math
import select
import socket


def is_readable_within(file: int | socket.socket, seconds_max: float | None) -> bool:
    """Whether something can be read, or a process of which this is a pidfd has ended; waits so long
    at most, and without limit for None."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds_max is None else math.ceil(seconds_max * 1_000)))
