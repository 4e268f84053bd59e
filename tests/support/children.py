"""Forked children of the test: they do one thing, and keep what they got until they are killed."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def child_that(action: Callable[[], object]) -> Iterator[int]:
    """A process that has done this, and keeps what it returned; it is killed at the end, if not
    before."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _kept = action()
            os.write(write_fd, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_fd)
    try:
        assert os.read(read_fd, 1) == b".", "the child failed"
        yield pid
    finally:
        os.close(read_fd)
        kill_and_reap(pid)


def kill_and_reap(pid: int) -> None:
    """Kill a child unless it was reaped before."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def children_at_once(
    count: int, action: Callable[[], object], refusal: type[Exception]
) -> Iterator[int]:
    """How many of several processes could do this at the same instant; `refusal` is raised in the
    others. They keep what it returned until the end of the block, when they are killed."""
    start_fd, started_fd = os.pipe()
    answer_fd, answered_fd = os.pipe()
    children = []
    for _ in range(count):
        if (pid := os.fork()) == 0:
            try:
                os.close(started_fd)
                os.read(start_fd, 1)  # returns when the parent closes the other end
                try:
                    _kept = action()
                except refusal:
                    os.write(answered_fd, b"-")
                else:
                    os.write(answered_fd, b"+")
                signal.pause()
            finally:
                os.write(answered_fd, b"?")
                os._exit(1)
        children.append(pid)
    os.close(started_fd)
    try:
        answers = b"".join(os.read(answer_fd, 1) for _ in children)
        assert b"?" not in answers, "a child failed"
        yield answers.count(b"+")
    finally:
        for fd in (start_fd, answer_fd, answered_fd):
            os.close(fd)
        for pid in children:
            kill_and_reap(pid)
