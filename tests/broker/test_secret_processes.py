"""Secret messages and the ends of processes (docs/protocol.md, "Secret messages")."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.admin import administer, wait_for_traffic
from tests.support.bus import SBUSD, Bus, bus_of, running_bus
from tests.support.inheritance import inherited_connection
from tests.support.processes import process_name, stopped, worker_pids
from tests.support.raw_client import TIMEOUT_S
from tests.support.secrets import OWN, address_of, secret, sync
from tests.support.threads import wait_until
from tests.support.users import STRANGER, become, directory_for_everybody, needs_root

OWNER = 65_432
"""A user and group id that no host gives to anybody."""

OLD_KERNEL = (
    sys.executable,
    "-c",
    "import sbus.unix.peer_process as p; p.has_peer_pidfds = lambda: False;"
    "from sbus.cli.sbusd.command import main; main()",
)
"""A bus whose kernel has no pidfds of those who connect."""


@pytest.mark.parametrize("command", [SBUSD, OLD_KERNEL], ids=["this kernel", "an old kernel"])
def test_a_connection_that_outlives_its_process_loses_the_process_id(
    tmp_path: Path, command: Sequence[str]
) -> None:
    address = str(tmp_path / "bus")
    arguments = ("-fa", address, "--workers=2", "--placement=spread")
    with bus_of(tmp_path, *arguments, address=address, command=command) as bus:
        check_that_an_heir_loses_the_number(bus)


def check_that_an_heir_loses_the_number(bus: Bus) -> None:
    with inherited_connection(address_of(bus)) as heir, bus.connect() as publisher:
        pid = b"%d" % heir.parent
        keys = [secret((b"", b"", pid)), secret((*OWN[:2], pid)), secret((*OWN[:2], b""))]
        of_process, of_user = keys[:2], keys[2]
        for pattern in (secret((b"", b"", b""), b""), secret((b"", b"", pid), b"")):
            heir.send(b"SUB " + pattern)
        assert sync(heir) == []
        for key in keys:
            publisher.pub(key, b"before")
        publisher.sync()
        assert sync(heir) == [b"MSG " + key + b"\0before" for key in keys]

        heir.end_parent()
        for key in keys:
            publisher.pub(key, b"after")
            heir.send(b"MSG " + key + b"\0by itself")
        publisher.sync()
        assert sorted(sync(heir)) == [
            b"MSG " + of_user + b"\0after",
            b"MSG " + of_user + b"\0by itself",
        ]

        heir.send(b"UNSUB " + secret((b"", b"", pid), b""))
        heir.send(b"SUB " + secret((b"", b"", b""), b"late/"))
        assert sync(heir) == []
        publisher.pub(of_process[0], b"")
        publisher.sync()
        assert sync(heir) == []
        heir.send(b"CMSG !/notices/on")
        heir.send(b"SUB " + secret((b"", b"", pid), b""))
        assert heir.receive().startswith(b"CMSG !/error\0not-yours ")
        assert heir.receive() == b""


def test_messages_to_a_process_that_has_ended_are_not_counted(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path) as bus,
        inherited_connection(address_of(bus)) as heir,
        bus.connect() as publisher,
        administer(bus) as admin,
    ):
        key = secret((b"", b"", b"%d" % heir.parent))
        heir.send(b"SUB " + key)
        sync(heir)
        publisher.pub(key, b"before")
        publisher.sync()
        assert sync(heir) == [b"MSG " + key + b"\0before"]
        heir.end_parent()
        with stopped(worker_pids(bus)[1]):  # so that all of them come at once
            for _ in range(10):
                publisher.pub(key, b"after")
        publisher.sync()
        assert sync(heir) == []
        traffic = wait_for_traffic(admin, lambda traffic: traffic["messages_in"] == 11)
        assert traffic["accepted"] == traffic["delivered"] == 1
        assert sum(traffic["latency"]["counts"]) == 1


def test_processes_of_one_user_are_told_apart(bus: Bus) -> None:
    with inherited_connection(address_of(bus)) as one, inherited_connection(address_of(bus)) as two:
        for client in (one, two):
            client.send(b"SUB " + secret((b"", b"", b""), b""))
            assert sync(client) == []
        with bus.connect() as publisher:
            publisher.pub(secret((b"", b"", b"%d" % one.parent)), b"1")
            publisher.pub(secret((b"", OWN[1], b"%d" % two.parent)), b"2")
            publisher.sync()
        assert [packet[-1:] for packet in sync(one)] == [b"1"]
        assert [packet[-1:] for packet in sync(two)] == [b"2"]


@needs_root
@pytest.mark.parametrize(("mode", "position"), [(0o4755, 1), (0o2755, 0)], ids=["uid", "gid"])
def test_the_program_of_another_user_does_not_share_its_secrets_with_a_child_of_before(
    mode: int, position: int
) -> None:
    """The process connects and forks; then it executes a program that is set-user-id or
    set-group-id. Its child still has the connection."""
    with directory_for_everybody() as directory, running_bus(directory, "-o") as bus:
        program = directory / "sleep"
        shutil.copy("/bin/sleep", program)
        os.chown(program, OWNER, OWNER)
        program.chmod(mode)

        def execute() -> None:
            os.execv(program, [str(program), "60"])

        with (
            inherited_connection(address_of(bus), become(), execute) as heir,
            bus.connect() as publisher,
        ):
            pid = b"%d" % heir.parent
            nameless = secret((b"", b"", pid))
            full = secret((b"%d" % STRANGER, b"%d" % STRANGER, pid))
            half = secret(
                (b"%d" % STRANGER, b"", pid) if position else (b"", b"%d" % STRANGER, pid)
            )
            heir.send(b"SUB " + secret((b"", b"", b""), b""))
            assert sync(heir) == []
            for key in (nameless, half, full):
                publisher.pub(key, b"before")
            publisher.sync()
            assert sync(heir) == [b"MSG " + key + b"\0before" for key in (nameless, half, full)]
            heir.let_parent_go_on()
            wait_until(lambda: process_name(heir.parent) == "sleep", "the program runs")
            try:
                for key in (nameless, half, full):
                    publisher.pub(key, b"after")
                publisher.sync()
                # The last one names the user and the group of before, which the program is not.
                assert sync(heir) == [b"MSG " + full + b"\0after"]
            finally:
                os.kill(heir.parent, signal.SIGKILL)


def is_pidfd(link: Path) -> bool:
    try:
        return "pidfd" in os.readlink(link)
    except FileNotFoundError:
        return False  # closed since it was listed


def test_descriptors_of_watched_processes_are_closed(bus: Bus) -> None:
    def pidfds() -> int:
        return sum(
            is_pidfd(link) for pid in bus.pids() for link in Path(f"/proc/{pid}/fd").iterdir()
        )

    def subscribe_and_leave() -> None:
        clients = [bus.connect() for _ in range(20)]
        for client in clients:
            client.sub(secret((b"", b"", b"")))
            client.sub(secret(OWN))
            client.sync()
        for client in clients:
            client.close()

    before = pidfds()
    subscribe_and_leave()
    deadline = time.monotonic() + TIMEOUT_S
    while pidfds() > before:
        assert time.monotonic() < deadline, "descriptors of processes stay open"
        with bus.connect() as client:
            client.sync()


def test_watching_leaves_descriptors_for_clients(tmp_path: Path) -> None:
    """Of 100 descriptors a worker uses four to watch processes, and one user has two of them."""
    limited = ("sh", "-c", 'ulimit -n 100; exec "$0" "$@"', *SBUSD)
    address = str(tmp_path / "bus")
    with (
        bus_of(tmp_path, "-fa", address, "--workers=1", address=address, command=limited) as bus,
        ExitStack() as stack,
    ):
        *clients, late = [stack.enter_context(bus.connect()) for _ in range(3)]
        for client in clients:
            client.sub(secret(OWN))
            client.sync()
        late.control(b"!/notices/on")
        late.sub(secret(OWN))
        assert late.receive().startswith(b"CMSG !/error\0too-many-secret ")
        late.pub(secret(OWN), b"")
        assert late.sync() == []
        assert all(client.receive() == b"MSG " + secret(OWN) + b"\0" for client in clients)
        clients.pop().close()
        deadline = time.monotonic() + TIMEOUT_S
        late.sub(secret(OWN))
        while late.sync():
            assert time.monotonic() < deadline, "a client that left is still counted"
            late.sub(secret(OWN))
        late.pub(secret(OWN), b"")
        assert late.receive() == b"MSG " + secret(OWN) + b"\0"
