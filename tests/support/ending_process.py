"""Reading what /proc has of a process that may end meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat. Source: include/linux/sched.h."""


@contextmanager
def unless_it_ends(pid: int) -> Iterator[None]:
    """End the block without an error if the process has ended, or is about to: from then on its
    files belong to root."""
    try:
        yield
    except (FileNotFoundError, ProcessLookupError):
        pass
    except PermissionError:
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            flags = stat.rpartition(")")[2].split()[6]
            if not int(flags) & _PF_EXITING:
                raise
