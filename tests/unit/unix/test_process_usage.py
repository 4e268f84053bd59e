"""What a process has used, also where nobody can tell."""

import os
import resource

from sbus.unix.process_usage import ProcessUsage, process_usage


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
