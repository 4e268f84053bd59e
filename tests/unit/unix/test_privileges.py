"""What a process that was confined may do, as the kernel sees it."""

import ctypes
import os
import resource
from pathlib import Path

import pytest

from sbus.unix.privileges import CAP_DAC_OVERRIDE, confine
from sbus.unix.users import Identity
from tests.support.children import child_that
from tests.support.users import STRANGER, needs_root

PR_GET_DUMPABLE = 3


def status() -> dict[str, str]:
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return {name: value.strip() for line in lines for name, _, value in [line.partition(":")]}


def capabilities() -> list[int]:
    return [int(status()[f"Cap{which}"], 16) for which in ("Prm", "Eff", "Inh", "Amb")]


@pytest.mark.parametrize("is_dumpable", [False, True])
def test_an_ordinary_user_s_process_gets_no_rights_and_is_not_looked_into(
    is_dumpable: bool,
) -> None:
    def check() -> None:
        confine(None, is_dumpable=is_dumpable)
        assert capabilities() == [0, 0, 0, 0]
        assert status()["NoNewPrivs"] == "1"
        assert ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == is_dumpable
        assert is_dumpable or resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
        confine(None)

    with child_that(check):
        pass


@needs_root
def test_another_user_s_process_has_only_that_user_s_ids() -> None:
    def check() -> None:
        confine(Identity(STRANGER, STRANGER - 1, (STRANGER - 2, STRANGER - 3)), {CAP_DAC_OVERRIDE})
        assert os.getresuid() == (STRANGER,) * 3
        assert os.getresgid() == (STRANGER - 1,) * 3
        assert set(os.getgroups()) == {STRANGER - 2, STRANGER - 3}
        assert capabilities() == [0, 0, 0, 0]

    with child_that(check):
        pass
