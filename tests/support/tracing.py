"""Processes under strace."""

import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager


@contextmanager
def traced(pids: Collection[int], *options: str) -> Iterator[None]:
    """strace traces these processes during the block."""
    command = ["strace", *options, *(f"-p{pid}" for pid in pids)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr
        lines = {strace.stderr.readline() for _ in pids}
        assert lines == {f"strace: Process {pid} attached\n" for pid in pids}, lines
        try:
            yield
        finally:
            strace.terminate()
