"""The time slice that the kernel shows for a process."""

import os
import re
from pathlib import Path

import pytest

_SLICE = re.compile(r"^se\.slice\s*:\s*(\d+)$", re.MULTILINE)
_VERSION = tuple(map(int, os.uname().release.split(".")[:2]))
_IS_SHOWN = _VERSION >= (6, 12) and Path("/proc/self/sched").exists()

needs_time_slices = pytest.mark.skipif(
    not _IS_SHOWN, reason="needs Linux 6.12 to choose time slices"
)


def time_slice_ns(pid: int | str) -> int | None:
    """None where `needs_time_slices` skips tests."""
    if not _IS_SHOWN:
        return None
    found = _SLICE.search(Path(f"/proc/{pid}/sched").read_text())
    assert found is not None
    return int(found[1])
