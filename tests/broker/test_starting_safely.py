"""Starting beside a bus that lives, after one that was killed, and twice at the same instant.

A bus that lives is not harmed, and what a killed one left is in nobody's way.
"""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sbus.bench.proc import process_tree
from tests.support.admin import Admin
from tests.support.bus import (
    BARE_SBUSD,
    SBUSD,
    START_SECONDS_MAX,
    refusal,
    sbusd_environment,
    wait_until_gone,
)
from tests.support.daemon import daemon_in, end, exchange, launch
from tests.support.processes import kill_at_once, process_name, stopped
from tests.support.threads import wait_until
from tests.support.users import directory_for_everybody, needs_root

GONE_SECONDS_MAX = 60.0
SERVICE = 65_431
"""A user and group id that no host gives to anybody."""


def refusal_in(directory: Path, *arguments: str) -> str:
    return refusal(*SBUSD, *arguments, cwd=directory)


# -- beside a bus that lives -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def live_pid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """The directory of a bus in the background, and its process; see `launch`."""
    directory = tmp_path_factory.mktemp("live")
    launch(directory)
    with daemon_in(directory) as pid:
        yield directory, pid
        end(pid)
    assert os.listdir(directory) == []


@pytest.fixture
def live(live_pid: tuple[Path, int]) -> Iterator[Path]:
    """The directory of this bus, to which nothing happens."""
    directory, pid = live_pid
    before = inodes(directory)
    assert sorted(before) == ["bus", "bus.admin", "pid"]
    yield directory
    assert inodes(directory) == before
    exchange(directory / "bus")
    with Admin(str(directory / "bus.admin")) as admin:
        assert admin.ask("version")["pid"] == pid


def inodes(directory: Path) -> dict[str, int]:
    return {name: os.lstat(directory / name).st_ino for name in os.listdir(directory)}


def test_the_pidfile_of_a_live_bus_is_in_use(live: Path) -> None:
    pid = (live / "pid").read_text().strip()
    said = refusal_in(live, "-ra", "other", "-p", "pid")
    advice = "end that, or name another file with -p"
    assert said == f"sbusd: pidfile {live}/pid is in use by process {pid}: {advice}\n"


def test_the_address_of_a_live_bus_is_in_use(live: Path) -> None:
    in_use = "another process listens there\n"
    assert refusal_in(live, "-f", "-a", "bus") == f"sbusd: bus is in use: {in_use}"
    said = refusal_in(live, "-p", "other", "-ra", "bus")
    assert said == f"sbusd: cannot replace bus: {in_use}"


def test_the_admin_address_of_a_live_bus_is_in_use(live: Path) -> None:
    for name in ("bus.admin", "bus"):
        said = refusal_in(live, "-rfa", "other", "--admin-address", name)
        assert said == f"sbusd: cannot replace {name}: another process listens there\n"


# -- after a bus that was killed -------------------------------------------------------------------


def start_again(directory: Path, *options: str) -> str:
    """Start a bus with -r, see that it serves, and end it; what it said."""
    log = directory / "log"
    with log.open("wb") as stderr:
        launch(directory, "-r", *options, stderr=stderr.fileno())
    with daemon_in(directory) as pid:
        exchange(directory / "bus")
        end(pid)
    said = log.read_text()
    log.unlink()
    assert os.listdir(directory) == []
    return said


def fork_server_of(processes: Sequence[int]) -> int:
    (pid,) = [pid for pid in processes if process_name(pid) == "sbusd-forkserv"]
    return pid


def test_after_kill_9_a_bus_starts_in_its_place(tmp_path: Path) -> None:
    """Nobody is left who could remove the files."""
    launch(tmp_path)
    with daemon_in(tmp_path) as pid:
        processes = process_tree(pid)
        kill_at_once(processes)
        for process in processes:
            assert wait_until_gone(process, GONE_SECONDS_MAX)
    assert sorted(os.listdir(tmp_path)) == ["bus", "bus.admin", "pid"]
    said = refusal_in(tmp_path, "-fa", "bus")
    assert said == "sbusd: bus exists, but no process listens there: use -r to replace it\n"
    assert start_again(tmp_path) == (
        f"sbusd: replaced pidfile {tmp_path}/pid, which process {pid} left behind\n"
        "sbusd: replaced socket bus, which a process left behind\n"
        "sbusd: replaced socket bus.admin, which a process left behind\n"
    )


def test_what_is_left_of_a_killed_bus_blocks_no_start(tmp_path: Path) -> None:
    """Its fork server hangs, and so does not end when the front has been killed."""
    launch(tmp_path)
    with daemon_in(tmp_path) as pid:
        processes = process_tree(pid)
        fork_server = fork_server_of(processes)
        with stopped(fork_server):
            os.kill(pid, signal.SIGKILL)
            assert wait_until_gone(pid, GONE_SECONDS_MAX)
            start_again(tmp_path)
            assert process_name(fork_server)
        for process in processes:
            assert wait_until_gone(process, GONE_SECONDS_MAX)


@needs_root
def test_the_remover_of_a_killed_bus_leaves_the_next_one_alone() -> None:
    """Which starts before the remover is done."""
    command = (*BARE_SBUSD, "--run-as", str(SERVICE))
    with directory_for_everybody() as directory:
        launch(directory, command=command)
        pid = int((directory / "pid").read_text())
        processes = process_tree(pid)
        with stopped(fork_server_of(processes)):  # the remover waits for this process
            os.kill(pid, signal.SIGKILL)
            assert wait_until_gone(pid, GONE_SECONDS_MAX)
            launch(directory, "-r", command=command)
        with daemon_in(directory) as next_pid:
            for process in processes:
                assert wait_until_gone(process, GONE_SECONDS_MAX)
            exchange(directory / "bus")
            assert (directory / "pid").read_text() == f"{next_pid}\n"
            end(next_pid)
        wait_until(lambda: os.listdir(directory) == [], "the removers are done")


# -- at the same instant ---------------------------------------------------------------------------


def start_together(directory: Path, *commands: Sequence[str]) -> list[tuple[int, str]]:
    """Start these buses at once, in the background; the status of each, and what it said."""
    starting = []
    for number, options in enumerate(commands):
        with (directory / f"log{number}").open("wb") as stderr:
            starting.append(
                subprocess.Popen(
                    [*SBUSD, "--workers=1", *options],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    cwd=directory,
                    env=sbusd_environment(),
                )
            )
    statuses = [process.wait(START_SECONDS_MAX) for process in starting]
    logs = [directory / f"log{number}" for number in range(len(commands))]
    said = [log.read_text() for log in logs]
    for log in logs:
        log.unlink()
    return list(zip(statuses, said, strict=True))


def leave_files(directory: Path) -> None:
    """What a bus at `bus` leaves that is killed."""
    for name in ("bus", "bus.admin"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
            left.bind(str(directory / name))
    (directory / "pid").write_text("4711\n")


@pytest.mark.parametrize(
    ("are_files_left", "options"),
    [
        (False, [("-p", "pid"), ("-p", "pid")]),
        (True, [("-rp", "/dev/null")] * 3),
    ],
)
def test_of_several_starts_at_one_address_one_serves(
    tmp_path: Path, are_files_left: bool, options: Sequence[Sequence[str]]
) -> None:
    """Each of the others says that its place is in use."""
    if are_files_left:
        leave_files(tmp_path)
    ended = start_together(tmp_path, *(("-a", "bus", *given) for given in options))
    assert sorted(status for status, _ in ended) == [0] + [1] * (len(options) - 1), ended
    for status, said in ended:
        if status:
            assert re.search(r"another process listens there|in use by process \d+", said), ended
    with Admin(str(tmp_path / "bus.admin")) as admin:
        pid = admin.ask("version")["pid"]
    exchange(tmp_path / "bus")
    end(pid)
    assert set(os.listdir(tmp_path)) <= {"pid"}
