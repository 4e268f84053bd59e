"""Which time slice a process has after it asked for one, and what it does where that is refused."""

import ctypes
import errno
import os

import pytest

from sbus.unix import time_slice
from sbus.unix.time_slice import request_time_slice
from tests.support.children import child_that
from tests.support.time_slices import needs_time_slices, time_slice_ns

TIME_SLICE_NS = 300_000


@needs_time_slices
def test_its_priority_and_a_policy_other_than_the_default_stay_as_they_are() -> None:
    def be_nice() -> None:
        os.nice(5)
        request_time_slice(TIME_SLICE_NS)

    def be_a_batch_job() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        request_time_slice(TIME_SLICE_NS)

    priority = os.getpriority(os.PRIO_PROCESS, 0)
    with child_that(be_nice) as child:
        assert time_slice_ns(child) == TIME_SLICE_NS
        assert os.getpriority(os.PRIO_PROCESS, child) == min(priority + 5, 19)
    with child_that(be_a_batch_job) as child:
        assert time_slice_ns(child) == time_slice_ns(os.getpid())
        assert os.sched_getscheduler(child) == os.SCHED_BATCH


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EINVAL])
def test_nothing_happens_where_that_is_refused(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_slice, "_libc", RefusingLibrary(number))
    request_time_slice(TIME_SLICE_NS)


def test_other_failures_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "_libc", RefusingLibrary(errno.EFAULT))
    with pytest.raises(OSError, match="Bad address"):
        request_time_slice(TIME_SLICE_NS)


def test_an_unknown_machine_has_no_numbers_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "alpha")
    monkeypatch.setattr(time_slice, "_libc", None)
    request_time_slice(TIME_SLICE_NS)


class RefusingLibrary:
    """A C library whose system calls all fail with this error."""

    def __init__(self, number: int) -> None:
        self._number = number

    def syscall(self, *_: object) -> int:
        ctypes.set_errno(self._number)
        return -1
