"""A bus and its service manager: notifications, the watchdog and socket activation."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.admin import Admin, administer
from tests.support.bus import (
    SBUSD,
    START_SECONDS_MAX,
    STOP_SECONDS_MAX,
    bus_of,
    kill_tree,
    refusal,
    running_bus,
    sbusd_environment,
    stop,
    wait_until_gone,
)
from tests.support.daemon import exchange
from tests.support.needs import needs_tool
from tests.support.processes import fork_server_pid, is_replaced, stopped, worker_pids
from tests.support.service_manager import ServiceManager, service_manager
from tests.support.threads import wait_until
from tests.support.upgrades import changing_bus, upgrade

QUICK = ("--limit", "worker_silence_seconds_max=1")
GONE_SECONDS_MAX = 60.0
ACTIVATE = shutil.which("systemd-socket-activate")
needs_activator = needs_tool("systemd-socket-activate", "systemd")


def managed_by(manager: ServiceManager, patch: pytest.MonkeyPatch, watchdog_s: float = 0) -> None:
    """Make every bus that is started from here on a service of this manager."""
    patch.setenv("NOTIFY_SOCKET", manager.address)
    if watchdog_s:
        patch.setenv("WATCHDOG_USEC", str(int(watchdog_s * 1e6)))


def test_it_is_notified_of_the_start_and_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_manager(tmp_path) as manager:
        managed_by(manager, monkeypatch)
        with running_bus(tmp_path, command=SBUSD) as bus, bus.connect() as client:
            ready = manager.next()
            assert ready.keys() == {"READY", "STATUS", "MAINPID"}
            assert (ready["READY"], ready["MAINPID"]) == ("1", str(bus.process.pid))
            assert ready["STATUS"] == f"2 workers serve at {bus.address}"
            client.whoami()
            assert manager.next(0) == {}
            assert {pid: datagram_sockets(pid) for pid in bus.pids()} == {
                pid: int(pid == bus.process.pid) for pid in bus.pids()
            }, "only the front can reach it"
            stop(bus)
            stopping = manager.next()
            assert stopping.keys() == {"STOPPING", "STATUS"}
            assert stopping["STOPPING"] == "1"
            assert manager.next(0) == {}
        assert bus.stderr_text() == ""


def test_it_is_notified_of_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that refuses the new configuration reports that it is ready, too."""
    file = tmp_path / "sbus.toml"
    file.write_text("")
    with service_manager(tmp_path) as manager:
        managed_by(manager, monkeypatch)
        with (
            running_bus(tmp_path, "--config", str(file), command=SBUSD) as bus,
            administer(bus) as admin,
        ):
            assert manager.next()["READY"] == "1"
            began_usec = time.monotonic_ns() // 1000
            admin.ask("reload")
            reloading = manager.next()
            assert reloading.keys() == {"RELOADING", "MONOTONIC_USEC", "STATUS"}
            assert began_usec <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
            assert manager.next()["READY"] == "1"
            file.write_text("nonsense = 1")
            _code, text = admin.fault("reload")
            assert manager.next()["RELOADING"] == "1"
            ready = manager.next()
            assert ready["READY"] == "1"
            assert text in ready["STATUS"]
            assert manager.next(0) == {}


def test_it_is_notified_of_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First by the process that it knows, then by the one that it is told to expect."""
    with service_manager(tmp_path) as manager:
        managed_by(manager, monkeypatch, watchdog_s=1)
        with changing_bus(tmp_path) as changing:
            assert manager.next_but_watchdog()["READY"] == "1"
            refused = subprocess.run(
                [*SBUSD, "--take-over", "-fa", changing.bus.address],
                env={**sbusd_environment(), "NOTIFY_SOCKET": ""},
                stderr=subprocess.PIPE,
                timeout=START_SECONDS_MAX,
                check=False,
            )
            assert b"a service manager runs this bus" in refused.stderr
            pid = str(upgrade(changing.bus)["pid"])
            assert manager.next_but_watchdog() == {"MAINPID": pid}
            ready = manager.next_but_watchdog()
            assert (ready["READY"], ready["MAINPID"]) == ("1", pid)
            assert ready["STATUS"] == f"2 workers serve at {changing.bus.address}"
            manager.discard()
            assert manager.is_fed_within(10)
        assert manager.next_but_watchdog()["STOPPING"] == "1"


def test_it_is_notified_why_the_bus_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_manager(tmp_path) as manager:
        managed_by(manager, monkeypatch)
        said = refusal(*SBUSD, "-fa", str(tmp_path / "not" / "there"))
        message = manager.next()
        assert said == f"sbusd: {message['STATUS']}\n"
        assert message.keys() == {"STATUS"}


def test_in_the_background_it_learns_the_daemon_s_process_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog stays active although the process that was started has ended."""
    pidfile = tmp_path / "pid"
    with service_manager(tmp_path) as manager:
        managed_by(manager, monkeypatch, watchdog_s=0.5)
        subprocess.run(
            [*SBUSD, "-a", str(tmp_path / "bus"), "-p", str(pidfile), "--workers=1"],
            env=sbusd_environment(),
            stdout=subprocess.DEVNULL,
            timeout=START_SECONDS_MAX,
            check=True,
        )
        pid = int(pidfile.read_text())
        try:
            assert manager.next_but_watchdog()["MAINPID"] == str(pid)
            assert manager.is_fed_within(10)
        finally:
            os.kill(pid, signal.SIGTERM)
        assert manager.next_but_watchdog()["STOPPING"] == "1"
        assert wait_until_gone(pid, GONE_SECONDS_MAX)


def datagram_sockets(pid: int) -> int:
    """How many unix datagram sockets a process has open."""
    rows = [line.split() for line in Path("/proc/net/unix").read_bytes().splitlines()[1:]]
    inodes = {row[6].decode() for row in rows if int(row[4], 16) == socket.SOCK_DGRAM}
    links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return sum(link.removeprefix("socket:[").removesuffix("]") in inodes for link in links)


# -- the watchdog ----------------------------------------------------------------------------------


def test_a_hung_worker_is_replaced_while_the_watchdog_is_fed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchdog_s = 2.0
    with service_manager(tmp_path) as manager:
        managed_by(manager, monkeypatch, watchdog_s)
        with running_bus(tmp_path, *QUICK, workers=2, command=SBUSD) as bus:
            hung = worker_pids(bus)[1]
            os.kill(hung, signal.SIGSTOP)
            while not is_replaced(bus, 1, hung):
                assert manager.is_fed_within(watchdog_s)
            assert wait_until_gone(hung, GONE_SECONDS_MAX)
            assert manager.is_fed_within(watchdog_s)
        assert re.search(r"worker 1 .* shows no sign of life: killed", bus.stderr_text())


def test_a_hung_front_or_fork_server_feeds_no_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the front detects a hung worker, and only the fork server replaces it."""
    watchdog_s = 0.4
    with service_manager(tmp_path) as manager:
        managed_by(manager, monkeypatch, watchdog_s)
        with running_bus(tmp_path, *QUICK, workers=1, command=SBUSD) as bus:
            assert manager.is_fed_within(10)
            for pid in (bus.process.pid, fork_server_pid(bus)):
                with stopped(pid):
                    manager.discard()
                    # Nothing can tell that something will not happen; twice the time must do.
                    assert not manager.is_fed_within(2 * watchdog_s)
                assert manager.is_fed_within(10), "it goes on, and so must this"


# -- sockets that it passes ------------------------------------------------------------------------


@contextmanager
def activated(directory: Path, names: str) -> Iterator[str]:
    """The path at which systemd-socket-activate starts a bus for the first client.

    Another socket, if `names` has two, is beside it.
    """
    path = str(directory / "bus")
    paths = [path, f"{path}.admin"][: len(names.split(":"))]
    assert ACTIVATE is not None
    command = [ACTIVATE, "--seqpacket", *(f"--listen={path}" for path in paths)]
    command += [f"--fdname={names}", f"-EPYTHONPATH={sbusd_environment()['PYTHONPATH']}"]
    stderr = directory / "activate.stderr"
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            [*command, *SBUSD, "-f", "--workers=2"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        listening = f"Listening on {paths[-1]}"
        wait_until(lambda: listening in stderr.read_text(), f"it is {listening}")
        yield path
        process.terminate()
        assert process.wait(STOP_SECONDS_MAX) == 0
        for path in paths:
            assert os.path.lexists(path), "a socket that is passed down is not the bus's to remove"
    finally:
        kill_tree(process)


@needs_activator
def test_an_activated_bus_serves_and_makes_an_admin_socket_beside_it(tmp_path: Path) -> None:
    with activated(tmp_path, "sbusd.socket") as path:
        exchange(path)
        with Admin(f"{path}.admin") as admin:
            assert admin.ask("version")["address"] == path


@needs_activator
def test_an_activated_bus_is_passed_its_admin_socket_by_name(tmp_path: Path) -> None:
    """Names count, not the order; and either of the two starts the bus."""
    with activated(tmp_path, "admin:bus") as first:
        second = f"{first}.admin"
        with Admin(first) as admin:
            assert admin.ask("version")["address"] == second
        exchange(second)


PASS_DOWN = """
import fcntl, os, sys
names, numbers, command = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in numbers]
for place, number in enumerate(high):
    os.dup2(number, 3 + place)
    os.close(number)
announced = str(names.count(":") + 1)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=announced, LISTEN_FDNAMES=names)
os.execv(command[0], command)
"""
"""What a service manager does, for sockets that systemd-socket-activate cannot make."""


def refusal_of(passed: Mapping[str, socket.socket | None], *options: str) -> str:
    """What sbusd says to a service manager that passes these sockets, by their names; None is
    announced and not there."""
    numbers = [sock.fileno() for sock in passed.values() if sock is not None]
    announced = (":".join(passed), ",".join(map(str, numbers)))
    command = (sys.executable, "-c", PASS_DOWN, *announced, *SBUSD, "-f", *options)
    return refusal(*command, pass_fds=numbers)


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[list[socket.socket]]:
    """A bound socket for sequenced packets, another, and one of the wrong type."""
    kinds = [socket.SOCK_SEQPACKET, socket.SOCK_SEQPACKET, socket.SOCK_STREAM]
    with ExitStack() as stack:
        made = [stack.enter_context(socket.socket(socket.AF_UNIX, kind)) for kind in kinds]
        for number, sock in enumerate(made):
            sock.bind(str(tmp_path / str(number)))
            sock.listen()
        yield made


def test_unusable_sockets_are_one_clear_error(sockets: list[socket.socket]) -> None:
    """Sockets with other names, or too many of them: see the unit tests."""
    packets, more_packets, stream = sockets
    for passed in ({"bus": stream}, {"bus": packets, "admin": stream}):
        assert "not a UNIX socket for sequenced packets" in refusal_of(passed)
    both = refusal_of({"bus": packets, "admin": more_packets}, "--admin-address", "/run/other")
    assert "leave one of them out" in both
    assert "passes /dev/fd/4, which is not open" in refusal_of({"bus": packets, "admin": None})


def test_a_given_address_is_preferred_to_passed_sockets(
    tmp_path: Path, sockets: list[socket.socket]
) -> None:
    """Whatever that is."""
    path, number = str(tmp_path / "mine"), sockets[2].fileno()
    command = (sys.executable, "-c", PASS_DOWN, "metrics", str(number), *SBUSD)
    arguments = ("-f", "-a", path, "--workers=1")
    with bus_of(tmp_path, *arguments, address=path, command=command, pass_fds=[number]) as bus:
        exchange(bus.address)
