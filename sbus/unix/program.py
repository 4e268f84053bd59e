"""The program that a process runs, for people who read a log. This module decides nothing."""

import os
from contextlib import suppress

_NAME_BYTES_MAX = 64


def program_name(pid: int) -> str:
    """The name of the program, as the process last set it, unprintable bytes escaped; "?" when the
    process is gone or hidden. Source: proc_pid_comm(5)."""
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb", buffering=0) as comm:
        name = os.read(comm.fileno(), _NAME_BYTES_MAX).removesuffix(b"\n")
        return name.decode("ascii", "backslashreplace").encode("unicode_escape").decode("ascii")
    return "?"
