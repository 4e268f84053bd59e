"""What the processes of a bus may do that root starts: as another user, and as root."""

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sbus.bench.proc import process_tree
from tests.support.admin import Admin, administer
from tests.support.bus import (
    BARE_SBUSD,
    START_SECONDS_MAX,
    Bus,
    bus_of,
    refusal,
    sbusd_environment,
    wait_until_gone,
)
from tests.support.processes import is_replaced, process_name, worker_pids
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

pytestmark = needs_root

SERVICE = 65_431
"""A user and group id that no host gives to anybody."""
AS_SERVICE = ("--run-as", str(SERVICE), "--workers=2")
CAP_DAC_OVERRIDE = 1 << 1
NO_CAPABILITIES = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_everybody() as entered_by_all:
        yield entered_by_all


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for line in lines for name, _, value in [line.partition(":")]}


def capabilities(pid: int) -> dict[str, int]:
    return {name: int(status(pid)[name], 16) for name in NO_CAPABILITIES}


def processes_of_bus(bus: Bus) -> tuple[int, list[int]]:
    """The remover, and all others."""
    names = {pid: process_name(pid) for pid in bus.pids()}
    (remover,) = [pid for pid, name in names.items() if name == "sbusd-remover"]
    return remover, [pid for pid in names if pid != remover]


def check_that_nothing_is_to_be_had(pid: int) -> None:
    """No program that is executed gets more rights, and nothing reads the memory."""
    assert status(pid)["NoNewPrivs"] == "1"
    assert os.stat(f"/proc/{pid}/environ").st_uid == 0, "it can be dumped and traced"
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max core file size        0                    0 " in limits


def test_a_bus_that_root_starts_is_another_user_s(directory: Path) -> None:
    address = str(directory / "bus")
    with bus_of(directory, "-foa", address, *AS_SERVICE, address=address) as bus:
        remover, others = processes_of_bus(bus)
        assert len(others) == 4, "the front, the fork server and two workers"
        for pid in others:
            assert status(pid)["Uid"].split() == [str(SERVICE)] * 4
            assert status(pid)["Gid"].split() == [str(SERVICE)] * 4
            assert status(pid)["Groups"] == ""
            assert capabilities(pid) == NO_CAPABILITIES
            check_that_nothing_is_to_be_had(pid)
        assert status(remover)["Uid"].split() == ["0"] * 4
        own = NO_CAPABILITIES | {"CapPrm": CAP_DAC_OVERRIDE, "CapEff": CAP_DAC_OVERRIDE}
        assert capabilities(remover) == own
        check_that_nothing_is_to_be_had(remover)
        assert not [fd for fd in os.listdir(f"/proc/{remover}/fd") if is_socket(remover, fd)]

        def can_look() -> bool:
            """Whether a process of the same user can look into the bus."""
            found = []
            for pid in others:
                for name in ("mem", "environ", "maps", "fd"):
                    try:
                        os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
                        if name == "fd":
                            os.listdir(f"/proc/{pid}/fd")
                        found.append((pid, name))
                    except PermissionError:
                        continue
            return bool(found)

        assert not as_user(can_look, uid=SERVICE, gid=SERVICE)
    assert os.listdir(directory) == ["bus.stderr"]


def is_socket(pid: int, fd: str) -> bool:
    return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")


def test_a_bus_that_stays_root_s_keeps_no_rights_over_others(directory: Path) -> None:
    address = str(directory / "bus")
    with bus_of(directory, "-fa", address, "--run-as=root", address=address) as bus:
        front, *others = bus.pids()
        own = NO_CAPABILITIES | {"CapPrm": CAP_DAC_OVERRIDE, "CapEff": CAP_DAC_OVERRIDE}
        assert capabilities(front) == own, "to remove its files"
        for pid in others:
            assert capabilities(pid) == NO_CAPABILITIES
        for pid in (front, *others):
            check_that_nothing_is_to_be_had(pid)


def test_it_serves_replaces_a_worker_and_reads_its_file_again(directory: Path) -> None:
    address = str(directory / "bus")
    file = directory / "sbus.toml"
    file.write_text("[limits]\nlog_interval_seconds = 5\n")
    file.chmod(0o644)
    file_and_group = ("--config", str(file), "--admin-group", str(STRANGER))
    options = (*AS_SERVICE, *file_and_group, "--limit", "worker_silence_seconds_max=1")
    with bus_of(directory, "-foa", address, *options, address=address) as bus:
        for signum in (signal.SIGKILL, signal.SIGSTOP):
            old = worker_pids(bus)[0]
            os.kill(old, signum)
            wait_until(partial(is_replaced, bus, 0, old), "worker 0 lives again")

        def is_served() -> bool:
            with RawClient(address) as client:
                client.sub(b"key")
                client.pub(b"key", b"payload")
                return client.receive() == b"MSG key\0payload"

        assert as_user(is_served)
        assert is_served()
        file.write_text("[limits]\nlog_interval_seconds = 7\n")
        with administer(bus) as admin:
            assert admin.ask("reload")["applied"] == ["limits.log_interval_seconds"]

        def administers() -> bool:
            with administer(bus) as admin:
                return bool(admin.ask("version")["pid"] == bus.process.pid)

        assert as_user(administers, gid=STRANGER)


def test_the_owner_of_an_abstract_address_is_who_started_the_bus(directory: Path) -> None:
    """Also after the configuration has been read again, which the other user does."""
    file = directory / "sbus.toml"
    file.write_text("[bus]\nsoft = 'queue'\n")
    file.chmod(0o644)
    administrators = str(directory / "admin")
    options = ("-fa", "/dev/unix/abstract", "--admin-address", administrators)
    with bus_of(directory, *options, *AS_SERVICE, "--config", str(file)) as bus:

        def is_admitted() -> bool:
            try:
                with RawClient(bus.address) as client:
                    return bool(client.whoami())
            except (ConnectionResetError, BrokenPipeError, AssertionError):
                return False

        for _ in range(2):
            assert is_admitted()
            assert not as_user(is_admitted)
            assert not as_user(is_admitted, uid=SERVICE, gid=SERVICE)
            file.write_text("[bus]\nsoft = 'discard'\n")
            with Admin(administrators) as admin:
                admin.ask("reload")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_socket_and_pidfile_are_removed_by_the_remover(
    directory: Path, signum: signal.Signals
) -> None:
    """Also when no process of the bus gets to do anything any more."""
    subprocess.run(
        [*BARE_SBUSD, "-a", "bus", "-p", "pid", *AS_SERVICE],
        stdin=subprocess.DEVNULL,
        cwd=directory,
        env=sbusd_environment(),
        timeout=START_SECONDS_MAX,
        check=True,
    )
    pid = int((directory / "pid").read_text())
    processes = process_tree(pid)
    assert sorted(os.listdir(directory)) == ["bus", "bus.admin", "pid"]
    os.kill(pid, signum)
    for process in processes:
        assert wait_until_gone(process, 15)
    assert os.listdir(directory) == []


def test_a_file_that_took_the_place_of_the_bus_s_is_left(directory: Path) -> None:
    address = directory / "bus"
    with bus_of(directory, "-fa", str(address), *AS_SERVICE, address=str(address)):
        address.unlink()
        address.write_text("somebody else's")
    assert address.read_text() == "somebody else's"


def test_a_user_that_does_not_exist_is_one_line(directory: Path) -> None:
    said = refusal(*BARE_SBUSD, "-fa", str(directory / "bus"), "--run-as", "nosuchuser")
    assert said == "sbusd: there is no user 'nosuchuser'\n"
    assert os.listdir(directory) == []


def test_without_a_user_to_run_as_root_is_warned(directory: Path) -> None:
    address = str(directory / "bus")
    with bus_of(directory, "-fa", address, address=address, command=BARE_SBUSD) as bus:
        has_user = any(user.pw_name == "sbus" for user in pwd.getpwall())
        is_warned = "warning: the bus runs as root" in bus.stderr_text()
        assert is_warned is not has_user
