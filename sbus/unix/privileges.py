"""What this process may do: giving up another user's rights, capabilities, dumps and tracing.

Everything here is permanent, and applies to all children of this process. Sources: capabilities(7),
prctl(2), PR_SET_DUMPABLE(2const).
"""

import ctypes
import errno
import os
import resource
from collections.abc import Set

from sbus.unix.users import Identity

CAP_DAC_OVERRIDE = 1
"""The capability of opening, making and removing files whatever their modes say."""

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x2008_0522
_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    """32 of the capabilities of a process, one bit each."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def confine(
    identity: Identity | None, kept: Set[int] = frozenset(), *, is_dumpable: bool = False
) -> None:
    """Run as this user, or go on as the same one, with no more capabilities than `kept`; another
    user than root keeps none. If this process is not to be dumpable, no other process of its user
    can trace it, and the kernel writes no dump of its memory. Raises OSError."""
    _drop_bounding_set()
    if identity is not None:
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    keep_capabilities(kept)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if not is_dumpable:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_DUMPABLE, int(is_dumpable))


def _drop_bounding_set() -> None:
    """A program that is executed gets no capabilities because of PR_SET_NO_NEW_PRIVS; so nothing is
    lost where this is not permitted."""
    for capability in range(_CAPABILITIES):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EPERM):  # no such capability; not permitted
                raise
            return


def keep_capabilities(kept: Set[int] = frozenset()) -> None:
    """Give up all other capabilities. Raises OSError."""
    header = _Header(_CAPABILITY_VERSION, 0)
    sets = (_Sets * 2)()
    _check(_libc.capget(ctypes.byref(header), sets))
    if not any(half.permitted | half.inheritable for half in sets):
        return  # a sandbox may forbid what follows
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    bits = sum(1 << capability for capability in kept)
    for half, mask in zip(sets, (bits & 0xFFFF_FFFF, bits >> 32), strict=True):
        half.permitted &= mask
        half.effective = half.permitted
        half.inheritable = 0
    _check(_libc.capset(ctypes.byref(header), sets))


def _prctl(option: int, value: int) -> None:
    arguments = [ctypes.c_ulong(argument) for argument in (value, 0, 0, 0)]
    _check(_libc.prctl(option, *arguments))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
