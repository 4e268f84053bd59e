"""Programs that die instead of one of their calls that change files (`die_at_write.c`)."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.support.bus import PROJECT


def preloaded(module: str, arguments: Sequence[str]) -> int:
    """Run this module as a program, with the library that can kill it; returns its exit status."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "die_at_write.so")
        source = Path(__file__).with_name("die_at_write.c")
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
        subprocess.run(["gcc", *flags, "-o", library, source], check=True)
        environment = {**os.environ, "LD_PRELOAD": str(library)}
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, cwd=PROJECT, env=environment, check=False).returncode


def is_preloaded() -> bool:
    return hasattr(ctypes.CDLL(None), "die_at")


def in_child(work: Callable[[], object]) -> int:
    """Its exit status, negative for a signal. A process of its own, because threads of deltalake
    and Arrow do not survive a fork."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dies_at(call: int, work: Callable[[], object]) -> bool:
    """Call `work` in a child that dies instead of this call; False if it made fewer calls."""
    status = in_child(partial(_die_at, call, work))
    assert status in (0, -signal.SIGKILL), f"call {call}: failed with status {status}"
    return status != 0


def _die_at(call: int, work: Callable[[], object]) -> None:
    ctypes.CDLL(None).die_at(ctypes.c_long(call))
    work()
