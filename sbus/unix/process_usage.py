"""CPU time and memory of a process, and its time of waiting for processors, from /proc."""

import os

import msgspec

_UTIME = 11
"""Index in /proc/PID/stat after the name; field 14 of proc_pid_stat(5), followed by stime."""
_RESIDENT, _SHARED = 1, 2
"""Indices in /proc/PID/statm, in pages."""


class ProcessUsage(msgspec.Struct, frozen=True):
    """CPU time, and memory that the process shares with no other."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0


class ScheduledTime(msgspec.Struct, frozen=True):
    """For how long the only thread of a process has run, and waited for a processor."""

    running_seconds: float
    waiting_seconds: float


def scheduled_time(pid: int) -> ScheduledTime | None:
    """None when that cannot be found out. Source: the kernel's sched-stats document."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as schedstat:
            running_ns, waiting_ns = schedstat.read().split()[:2]
    except OSError:
        return None  # as below, or a kernel without it
    return ScheduledTime(int(running_ns) / 1e9, int(waiting_ns) / 1e9)


def process_usage(pid: int) -> ProcessUsage:
    """What process `pid` has used; zero when that cannot be found out."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat, open(f"/proc/{pid}/statm", "rb") as statm:
            times = stat.read().rpartition(b") ")[2].split()
            pages = statm.read().split()
    except OSError:
        return ProcessUsage()  # ended, hidden from this user, or no descriptor left
    ticks = int(times[_UTIME]) + int(times[_UTIME + 1])
    own_pages = int(pages[_RESIDENT]) - int(pages[_SHARED])
    return ProcessUsage(
        cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
        memory_bytes=own_pages * os.sysconf("SC_PAGE_SIZE"),
    )
