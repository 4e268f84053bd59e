"""A child process that acts for a worker of this process's bus, and may die meanwhile."""

import os
import traceback
from collections.abc import Callable

from tests.support.compiled_step import DEATH_STATUS


def dies(memfd: int, lock_fd: int, act: Callable[[], None]) -> bool:
    """Have a child act, with the shared memory of this descriptor and its lock; whether it ended
    with `DEATH_STATUS` before that was done."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            # With a description of its own, which frees the lock when the child ends.
            os.dup2(os.open(f"/proc/self/fd/{memfd}", os.O_RDWR), lock_fd)
            act()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, DEATH_STATUS)
    return code != 0
