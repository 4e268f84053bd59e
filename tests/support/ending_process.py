"""Looks into /proc at processes that may end meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat. Source: include/linux/sched.h."""


@contextmanager
def unless_it_ends(pid: int) -> Iterator[None]:
    """The block ends without an error where the process has ended, or is about to: then its files
    belong to root."""
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
