"""The time slice of a process: for how long the kernel lets it run before others have their turns.

Linux gives processes of one priority equal shares of a processor, and the next turn to the one
whose time slice would end first (EEVDF). So a process with a short one waits less for its turns:
when it wakes up, it preempts a process with a longer one, unless it has had more than its share.
Since Linux 6.12 a process may choose its time slice. Sources: sched_setattr(2), and sched-eevdf.rst
in the documentation of the kernel.
"""

import ctypes
import errno
import os
import platform

_SYSTEM_CALLS = {"x86_64": (315, 314), "aarch64": (275, 274), "riscv64": (275, 274)}
"""The numbers of `sched_getattr` and `sched_setattr`, which few C libraries have functions for."""
_REFUSED = frozenset({errno.EPERM, errno.ENOSYS, errno.EINVAL})
"""By a filter of system calls, or by a kernel without these calls or attributes."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """`struct sched_attr` in its first version, which every kernel knows."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def request_time_slice(time_slice_ns: int) -> None:
    """Ask for a time slice of this length, for this thread and for the threads and children that it
    starts from now on. Nothing changes where that is unknown or refused, or where this process has
    another scheduling policy than the default. Raises OSError."""
    numbers = _SYSTEM_CALLS.get(platform.machine())
    if numbers is None:
        return
    get_attributes, set_attributes = numbers
    attributes = _Attributes()
    pointer, size = ctypes.byref(attributes), ctypes.c_uint(ctypes.sizeof(attributes))
    try:
        _call(get_attributes, pointer, size)
        if attributes.policy == os.SCHED_OTHER:
            attributes.runtime_ns = time_slice_ns
            _call(set_attributes, pointer)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise


def _call(number: int, pointer: object, *more: ctypes.c_uint) -> None:
    """Make one of these system calls for this thread, without flags."""
    this_thread, no_flags = ctypes.c_int(0), ctypes.c_uint(0)
    if _libc.syscall(ctypes.c_long(number), this_thread, pointer, *more, no_flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
