"""What a process has used, also where nobody can tell."""

import os
import resource
import time

from sbus.unix.process_usage import ProcessUsage, process_usage, scheduled_time


def test_a_process_has_used_something() -> None:
    usage = process_usage(os.getpid())
    assert usage.cpu_seconds > 0
    assert usage.memory_bytes > 0


def test_a_process_that_does_not_exist_has_used_nothing() -> None:
    assert process_usage(0) == ProcessUsage()


def test_without_a_free_descriptor_nothing_is_known() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        usage = process_usage(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert usage == ProcessUsage()


def test_a_process_runs_or_waits_for_a_processor_while_it_is_busy() -> None:
    before, began_at = scheduled_time(os.getpid()), time.monotonic()
    while time.monotonic() < began_at + 0.1:
        pass
    after = scheduled_time(os.getpid())
    assert before is not None
    assert after is not None
    running_seconds = after.running_seconds - before.running_seconds
    waiting_seconds = after.waiting_seconds - before.waiting_seconds
    assert running_seconds > 0
    assert running_seconds + waiting_seconds > 0.07  # the kernel may account for waiting later


def test_a_process_that_does_not_exist_is_not_scheduled() -> None:
    assert scheduled_time(0) is None
