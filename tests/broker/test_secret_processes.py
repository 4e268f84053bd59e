"""Secret messages and the ends of processes (docs/protocol.md, "Secret messages")."""

import os
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.admin import administer, wait_for_traffic
from tests.support.bus import SBUSD, Bus, bus_of, running_bus
from tests.support.inheritance import inherited_connection
from tests.support.processes import process_name
from tests.support.raw_client import TIMEOUT_S
from tests.support.secrets import OWN, address_of, secret, sync
from tests.support.threads import wait_until
from tests.support.users import STRANGER, become, directory_for_everybody, needs_root

OWNER = 65_432
"""A user and group id that no host gives to anybody."""


def test_a_connection_that_outlives_its_process_loses_the_process_id(bus: Bus) -> None:
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
        with administer(bus) as admin:
            traffic = wait_for_traffic(admin, lambda now: now["delivered"] == 5)
        assert traffic["accepted"] == 5, "what is not delivered for this reason is not counted"

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


@needs_root
def test_the_program_of_another_user_does_not_share_its_secrets_with_a_child_of_before() -> None:
    """The process connects and forks; then it executes a program that is set-user-id. Its child
    still has the connection."""
    with directory_for_everybody() as directory, running_bus(directory, "-o") as bus:
        program = directory / "sleep"
        shutil.copy("/bin/sleep", program)
        os.chown(program, OWNER, OWNER)
        program.chmod(0o4755)

        def execute() -> None:
            os.execv(program, [str(program), "60"])

        with (
            inherited_connection(address_of(bus), become(), execute) as heir,
            bus.connect() as publisher,
        ):
            pid = b"%d" % heir.parent
            nameless = secret((b"", b"", pid))
            full = secret((b"%d" % STRANGER, b"%d" % STRANGER, pid))
            half = secret((b"%d" % STRANGER, b"", pid))
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
