"""Starting beside a bus that lives, after one that was killed, and twice at the same instant.

A bus that lives is not harmed, and what a killed one left is in nobody's way.
"""

import os
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sbus.bench.proc import process_tree
from sbus.unix.address import admin_address, parse_address
from tests.support.admin import Admin
from tests.support.bus import (
    BARE_SBUSD,
    SBUSD,
    START_SECONDS_MAX,
    refusal,
    running_bus,
    sbusd_environment,
    wait_until_gone,
)
from tests.support.daemon import daemon_in, end, exchange, launch
from tests.support.processes import kill_at_once, process_name, stopped
from tests.support.threads import wait_until
from tests.support.users import directory_for_everybody, needs_root

GONE_SECONDS_MAX = 60.0
RACES = 2
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


@pytest.mark.parametrize("options", [(), ("-r",)])
def test_the_pidfile_of_a_live_bus_is_in_use(live: Path, options: Sequence[str]) -> None:
    pid = (live / "pid").read_text().strip()
    said = refusal_in(live, *options, "-a", "other", "-p", "pid")
    advice = "end that, or name another file with -p"
    assert said == f"sbusd: pidfile {live}/pid is in use by process {pid}: {advice}\n"


@pytest.mark.parametrize("background", [("-f",), ("-p", "other"), ("-p", "/dev/null")])
def test_the_address_of_a_live_bus_is_in_use(live: Path, background: Sequence[str]) -> None:
    in_use = "another process listens there\n"
    assert refusal_in(live, *background, "-a", "bus") == f"sbusd: bus is in use: {in_use}"
    assert refusal_in(live, *background, "-ra", "bus") == f"sbusd: cannot replace bus: {in_use}"


def test_the_admin_address_of_a_live_bus_is_in_use(live: Path) -> None:
    for name in ("bus.admin", "bus"):
        said = refusal_in(live, "-rfa", "other", "--admin-address", name)
        assert said == f"sbusd: cannot replace {name}: another process listens there\n"


def test_a_bus_that_exits_when_empty_does_not_notice_another_start(tmp_path: Path) -> None:
    with running_bus(tmp_path, "-c", command=SBUSD) as bus:
        refusal_in(tmp_path, "-rfa", bus.address)
        exchange(bus.address)
        assert bus.process.wait(GONE_SECONDS_MAX) == 0


def test_a_bus_with_a_full_listen_queue_lives(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as busy:
        busy.bind(str(path))
        busy.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
            waiting.connect(str(path))
            assert "another process listens there" in refusal_in(tmp_path, "-rfa", "bus")


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


def reports_of(directory: Path, pid: int) -> str:
    return (
        f"sbusd: replaced pidfile {directory}/pid, which process {pid} left behind\n"
        "sbusd: replaced socket bus, which a process left behind\n"
        f"sbusd: replaced socket {directory}/bus.admin, which a process left behind\n"
    )


def fork_server_of(processes: Sequence[int]) -> int:
    (pid,) = [pid for pid in processes if process_name(pid) == "sbusd-forkserv"]
    return pid


def test_a_front_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        launch(tmp_path, stderr=stderr.fileno())
    with daemon_in(tmp_path) as pid:
        processes = process_tree(pid)
        os.kill(pid, signal.SIGKILL)
        for process in processes:
            assert wait_until_gone(process, GONE_SECONDS_MAX)
    assert os.listdir(tmp_path) == ["log"]
    said = f"the front (pid {pid}) died, and the bus ends; files left behind: nothing\n"
    assert log.read_text().endswith(said)


@pytest.mark.parametrize("part", ["front and fork server", "all"])
def test_after_kill_9_a_bus_starts_in_its_place(tmp_path: Path, part: str) -> None:
    """Nobody is left who could remove the files."""
    launch(tmp_path)
    with daemon_in(tmp_path) as pid:
        processes = process_tree(pid)
        kill_at_once(processes if part == "all" else [fork_server_of(processes), pid])
        for process in processes:
            assert wait_until_gone(process, GONE_SECONDS_MAX)
    assert sorted(os.listdir(tmp_path)) == ["bus", "bus.admin", "pid"]
    said = refusal_in(tmp_path, "-fa", "bus")
    assert said == "sbusd: bus exists, but no process listens there: use -r to replace it\n"
    reports = start_again(tmp_path)
    assert reports.replace(f"{tmp_path}/bus.admin", "bus.admin") == reports_of(
        tmp_path, pid
    ).replace(f"{tmp_path}/bus.admin", "bus.admin")


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
@pytest.mark.parametrize("awaits_end", [True, False])
def test_the_remover_of_a_killed_bus_leaves_the_next_one_alone(awaits_end: bool) -> None:
    """Which starts before the remover is done, or after."""
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
            for process in processes if awaits_end else []:
                assert wait_until_gone(process, GONE_SECONDS_MAX)
            exchange(directory / "bus")
            assert (directory / "pid").read_text() == f"{next_pid}\n"
            end(next_pid)
            for process in processes:
                assert wait_until_gone(process, GONE_SECONDS_MAX)
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


def check_race(directory: Path, address: str, *commands: Sequence[str]) -> None:
    """Start these buses together: one serves, and each other says that its place is in use."""
    ended = start_together(directory, *commands)
    assert sorted(status for status, _ in ended) == [0] + [1] * (len(commands) - 1), ended
    for status, said in ended:
        if status:
            assert re.search(r"another process listens there|in use by process \d+", said), ended
    with Admin(admin_address(parse_address(address)).sockaddr()) as admin:
        pid = admin.ask("version")["pid"]
    exchange(address)
    end(pid)


@pytest.mark.parametrize(
    ("are_files_left", "options"),
    [
        (False, [("-p", "one"), ("-p", "two")]),
        (False, [("-p", "pid"), ("-p", "pid")]),
        (True, [("-rp", "pid"), ("-rp", "pid")]),
        (True, [("-rp", "pid"), ("-rp", "/dev/null")]),
        (True, [("-rp", "/dev/null")] * 3),
    ],
)
def test_of_several_starts_at_one_address_one_serves(
    tmp_path: Path, are_files_left: bool, options: Sequence[Sequence[str]]
) -> None:
    for _ in range(RACES):
        if are_files_left:
            leave_files(tmp_path)
        address = str(tmp_path / "bus")
        check_race(tmp_path, address, *(("-a", address, *given) for given in options))
        assert set(os.listdir(tmp_path)) <= {"pid"}


def test_of_several_starts_at_one_abstract_address_one_serves(tmp_path: Path) -> None:
    for _ in range(RACES):
        address = f"/dev/unix/abstract/00{secrets.token_hex(16)}"
        check_race(tmp_path, address, *[("-ra", address, "-p", "/dev/null")] * 2)
