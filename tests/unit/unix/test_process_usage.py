"""What a process has used, also where nobody can tell."""

import os
import resource
import time

from sbus.unix.process_usage import ProcessUsage, busy_seconds, process_usage


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


def test_a_process_is_busy_while_it_runs() -> None:
    before, cpu_before = busy_seconds(os.getpid()), time.process_time()
    while time.process_time() - cpu_before < 0.05:
        pass
    after = busy_seconds(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before >= 0.03  # the kernel accounts for it at the next tick


def test_a_process_that_does_not_exist_cannot_be_measured() -> None:
    assert busy_seconds(0) is None
