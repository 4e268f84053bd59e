"""A bus in the background, as `sbusd` without -f starts it."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sbus.bench.proc import process_tree
from tests.support.bus import (
    SBUSD,
    START_SECONDS_MAX,
    STOP_SECONDS_MAX,
    sbusd_environment,
    wait_until_gone,
)
from tests.support.raw_client import RawClient


def launch(
    directory: Path,
    *options: str,
    command: Sequence[str] = SBUSD,
    stderr: int | None = None,
    pass_fds: Sequence[int] = (),
) -> str:
    """Start a bus with its socket and its pidfile in `directory`; returns what sbusd printed.

    Standard output is at its end when this returns: no process of the bus holds on to it.
    """
    done = subprocess.run(
        [*command, "-a", "bus", "-p", "pid", "--workers=2", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        timeout=START_SECONDS_MAX,
        cwd=directory,
        env=sbusd_environment(),
        check=False,
        pass_fds=pass_fds,
    )
    assert done.returncode == 0
    return done.stdout.decode()


@contextmanager
def daemon_in(directory: Path) -> Iterator[int]:
    """The process id of the bus that was launched there; nothing of it survives the block."""
    pid = int((directory / "pid").read_text())
    try:
        yield pid
    finally:
        for process in reversed(process_tree(pid)):
            os.kill(process, signal.SIGKILL)


def exchange(address: str | Path) -> None:
    with RawClient(str(address)) as client:
        client.sub(b"key")
        client.pub(b"key", b"payload")
        assert client.receive() == b"MSG key\0payload"


def end(pid: int) -> None:
    processes = process_tree(pid)
    os.kill(pid, signal.SIGTERM)
    for process in processes:
        assert wait_until_gone(process, STOP_SECONDS_MAX), f"{process} of {processes} goes on"
