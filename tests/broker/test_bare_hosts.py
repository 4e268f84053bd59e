"""Hosts that lack something: /proc, the list of locks, or files of any size."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.support.bus import SBUSD, refusal, running_bus
from tests.support.needs import needs_tool
from tests.support.processes import is_replaced, worker_pids
from tests.support.threads import wait_until
from tests.support.users import WITHOUT_FILE_PRIVILEGES, needs_root

needs_mounts = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0,
    reason="no mount namespaces here",
)


def with_mounts(script: str) -> tuple[str, ...]:
    """Before a command: in mounts of its own, which the script changes."""
    return ("unshare", "-m", "sh", "-c", f'set -e; {script}; exec "$@"', "sh")


NO_PROC = with_mounts("mount -t tmpfs none /proc")
NO_FILES = ("prlimit", "--fsize=0:0")


def complaint(directory: Path, command: Sequence[str], *options: str) -> str:
    """What sbusd says when it cannot start in the background: one line."""
    line = refusal(*command, *SBUSD, "-a", str(directory / "bus"), "-p", "/dev/null", *options)
    assert not os.listdir(directory)
    return line.removesuffix("\n")


@needs_root
@needs_mounts
def test_without_proc_there_is_one_line(tmp_path: Path) -> None:
    assert "there is no /proc" in complaint(tmp_path, NO_PROC)


@needs_tool("prlimit", "util-linux")
def test_without_room_for_the_memory_there_is_one_line(tmp_path: Path) -> None:
    line = complaint(tmp_path, NO_FILES)
    assert line == "sbusd: cannot make the shared memory: File too large"


@needs_tool("prlimit", "util-linux")
def test_with_too_few_files_for_the_workers_there_is_one_line(tmp_path: Path) -> None:
    line = complaint(tmp_path, ("prlimit", "--nofile=60:60"), "--workers=8")
    assert line.startswith("sbusd: 60 open files are too few for 8 workers, ")


@needs_root
@needs_mounts
def test_a_hung_worker_is_replaced_though_the_list_of_locks_is_unreadable(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    locks.touch(0o000)
    hidden = with_mounts(f"mount --bind {locks} /proc/locks")
    command = (*hidden, *WITHOUT_FILE_PRIVILEGES, *SBUSD)
    options = ("--limit", "worker_silence_seconds_max=1")
    with running_bus(tmp_path, *options, command=command) as bus:
        old = worker_pids(bus)[1]
        os.kill(old, signal.SIGSTOP)
        wait_until(partial(is_replaced, bus, 1, old), "worker 1 lives again")
        with bus.connect() as client:
            client.whoami()
        assert "Traceback" not in bus.stderr_text()
