"""A wait for one descriptor."""

import fcntl
import os
import socket
import time

import pytest

from sbus.unix.readiness import is_readable_within

HIGH = 1_100
"""More than select(2) takes."""


@pytest.mark.parametrize("least", [0, HIGH])
def test_a_wait_ends_with_something_to_read_or_with_the_time(least: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, least)) as copy:
        assert copy.fileno() >= least
        began_at = time.monotonic()
        assert not is_readable_within(copy, 0.01)
        assert time.monotonic() >= began_at + 0.01
        assert not is_readable_within(copy, 0)
        theirs.send(b"x")
        assert is_readable_within(copy, None)
        assert is_readable_within(copy.fileno(), 0)


def test_a_pidfd_is_readable_when_its_process_has_ended() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    pidfd = os.pidfd_open(child)
    try:
        assert is_readable_within(pidfd, None)
    finally:
        os.close(pidfd)
        os.waitpid(child, 0)
