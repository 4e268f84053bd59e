"""In the background: sbusd returns when the bus is ready, and the bus continues without it."""

import os
import pty
import re
import select
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from sbus.bench.proc import process_tree
from tests.support.bus import (
    SBUSD,
    STOP_SECONDS_MAX,
    await_file,
    has_released_output,
    sbusd_environment,
)
from tests.support.daemon import daemon_in, end, exchange, launch


def test_daemon_has_no_parent_no_terminal_and_no_directory_and_ignores_hangups(
    tmp_path: Path,
) -> None:
    """It is ready when sbusd returns, and leaves nothing behind: address and pidfile are given
    relative, and it works in another directory."""
    assert launch(tmp_path) == ""
    with daemon_in(tmp_path) as pid:
        assert (tmp_path / "pid").read_text() == f"{pid}\n"
        assert os.getsid(pid) not in (pid, os.getsid(0))
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        parent, terminal = int(state[1]), int(state[4])
        assert parent != os.getpid()
        assert terminal == 0
        processes = process_tree(pid)
        assert len(processes) > 2
        assert all(has_released_output(process) for process in processes)
        for process in processes:
            os.kill(process, signal.SIGHUP)
        exchange(tmp_path / "bus")
        end(pid)
    assert os.listdir(tmp_path) == []


def test_random_address_is_printed_before_sbusd_returns(tmp_path: Path) -> None:
    printed = launch(tmp_path, "-a", "/dev/unix/abstract")
    with daemon_in(tmp_path) as pid:
        assert re.fullmatch(r"/dev/unix/abstract/00[0-9a-f]{214}\n", printed)
        exchange(printed.strip())
        end(pid)
    assert os.listdir(tmp_path) == []


def test_passed_socket_is_served_in_the_background(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passed:
        passed.bind(str(tmp_path / "passed"))
        number = passed.fileno()
        launch(tmp_path, "-a", f"/dev/fd/{number}", pass_fds=[number])
    with daemon_in(tmp_path) as pid:
        exchange(tmp_path / "passed")
        end(pid)
    assert os.listdir(tmp_path) == ["passed"]


# -- standard error --------------------------------------------------------------------------------


def test_terminal_is_released(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    launch(tmp_path, stderr=terminal)
    os.close(terminal)
    with daemon_in(tmp_path) as pid:
        for process in process_tree(pid):
            assert os.readlink(f"/proc/{process}/fd/2") == os.devnull
        end(pid)
    os.close(controller)


# -- the pidfile -----------------------------------------------------------------------------------


def test_no_pidfile_at_dev_null(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    launch(tmp_path, "-c", "-p", os.devnull, stderr=write_fd)
    os.close(write_fd)
    assert sorted(os.listdir(tmp_path)) == ["bus", "bus.admin"]
    exchange(tmp_path / "bus")
    assert read_to_end(read_fd) == b""
    assert os.listdir(tmp_path) == []


# -- giving up half-way ----------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("milestone", ["pid", "bus"])
def test_sbusd_that_is_killed_before_it_returns_ends_the_bus(
    tmp_path: Path, milestone: str, signum: signal.Signals
) -> None:
    process = subprocess.Popen(
        [*SBUSD, "-a", "bus", "-p", "pid", "--workers=8"],
        cwd=tmp_path,
        env=sbusd_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        await_file(tmp_path / milestone, process)
        process.send_signal(signum)
        if process.wait(STOP_SECONDS_MAX) == 0:  # the bus was faster than this test
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        stderr = read_to_end(process.stderr.fileno())
        process.stderr.close()
        assert stderr in (b"", b"sbusd: the bus ended before it was ready\n")
    finally:
        process.kill()
    assert os.listdir(tmp_path) == []


def read_to_end(read_fd: int) -> bytes:
    """All that is written to a pipe until every process has closed its other end, for a time."""
    everything = b""
    while True:
        readable, _, _ = select.select([read_fd], [], [], STOP_SECONDS_MAX)
        assert readable, "a process of the bus goes on"
        if not (chunk := os.read(read_fd, 65_536)):
            return everything
        everything += chunk
