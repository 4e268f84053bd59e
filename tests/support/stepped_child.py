"""A child process that dies between two instructions of machine code, as the kernel lets it step.

Unlike `dying_child`, this needs no hooks in the code, so the code may be that of a release. Source
of the requests: ptrace(2).
"""

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final

_TRACEME: Final = 0
_CONTINUE: Final = 7
_STEP: Final = 9
_libc = ctypes.CDLL(None, use_errno=True)


def _ptrace(request: int, pid: int) -> None:
    if _libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def begin_or_end_steps() -> None:
    """In a child: what comes next is stepped, or was."""
    os.kill(os.getpid(), signal.SIGSTOP)


def dies_after(changes: int, act: Callable[[], None], watched: Callable[[], bytes]) -> bool:
    """Have a child act, and kill it once it has changed the watched bytes so many times between
    calls of `begin_or_end_steps`. Returns False if it has done less, and has ended."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _ptrace(_TRACEME, 0)
            act()
            status = 0
        finally:
            os._exit(status)
    is_stepped = False
    seen, before = 0, b""
    while True:
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return False
        assert os.WIFSTOPPED(status), status
        if os.WSTOPSIG(status) == signal.SIGSTOP:
            is_stepped = not is_stepped
            before = watched()
        elif is_stepped and (now := watched()) != before:
            seen, before = seen + 1, now
        if is_stepped and seen == changes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return True
        _ptrace(_STEP if is_stepped else _CONTINUE, pid)
