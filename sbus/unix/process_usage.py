"""What a process has used so far, as proc(5) shows it. This module decides nothing."""

import os

import msgspec

_UTIME = 11
"""Place in /proc/PID/stat, counted from behind the name (proc_pid_stat(5): 14); then stime."""
_RESIDENT, _SHARED = 1, 2
"""Places in /proc/PID/statm, in pages."""


class ProcessUsage(msgspec.Struct, frozen=True):
    """Processor time, and memory that the process shares with no other."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0


def process_usage(pid: int) -> ProcessUsage:
    """What process `pid` has used; nothing when there is none, or nobody can tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat, open(f"/proc/{pid}/statm", "rb") as statm:
            times = stat.read().rpartition(b") ")[2].split()
            pages = statm.read().split()
    except OSError:
        return ProcessUsage()  # gone, hidden from this user, or no descriptor to look with
    ticks = int(times[_UTIME]) + int(times[_UTIME + 1])
    own_pages = int(pages[_RESIDENT]) - int(pages[_SHARED])
    return ProcessUsage(
        cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
        memory_bytes=own_pages * os.sysconf("SC_PAGE_SIZE"),
    )
