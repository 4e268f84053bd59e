"""The CPU time of a process, and bounds on it that hold on a busy machine."""

from collections.abc import Callable

from sbus.unix.process_usage import scheduled_time


def cpu_seconds(pid: int) -> float:
    time = scheduled_time(pid)
    assert time is not None
    return time.running_seconds


def least_cpu_seconds(call: Callable[[], float], seconds_max: float) -> float:
    """The CPU time that a call takes of a process, which it returns; if that is too much, the least
    of ten calls. Others on the processor only add to it, by what they evict from the caches."""
    least = call()
    for _ in range(9):
        if least >= seconds_max:
            least = min(least, call())
    return least
