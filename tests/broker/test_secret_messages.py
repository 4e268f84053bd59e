"""Secret messages with real processes and real users (PROTOCOL, "Secret messages").

What one process may subscribe to, and receives: `tests/protocol/05-secret-messages.t`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bus import PROJECT, Bus, running_bus, sbusd_environment
from tests.support.raw_client import WHOAMI, RawClient
from tests.support.secrets import secret
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


@pytest.fixture(scope="module")
def open_bus() -> Iterator[Bus]:
    """A bus for every user of the host."""
    with directory_for_everybody() as directory, running_bus(directory, "-go", workers=4) as bus:
        yield bus


# -- another user ----------------------------------------------------------------------------------


@needs_root
def test_the_group_is_the_primary_one(open_bus: Bus) -> None:
    """A supplementary group is not the client's own."""

    def names_its_group(gid: int) -> bool:
        with RawClient(open_bus.address) as client:
            client.sub(secret((b"%d" % gid, b"", b"")))
            try:
                client.control(WHOAMI)
                return bool(client.receive())
            except (BrokenPipeError, ConnectionResetError):
                return False

    assert as_user(lambda: names_its_group(STRANGER), groups=[65_101])
    assert not as_user(lambda: names_its_group(65_101), groups=[65_101])


# -- the documents ---------------------------------------------------------------------------------


def documented_programs() -> dict[str, str]:
    """The Python programs of docs/secret-messages.md, by the name in their first line."""
    text = (PROJECT / "docs/secret-messages.md").read_text()
    programs = re.findall(r"^```python\n# (\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return dict(programs)


def test_two_clients_prove_their_identities_as_documented(bus: Bus, tmp_path: Path) -> None:
    programs = documented_programs()
    assert set(programs) == {"alice", "bob"}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", programs[name]],
            env={**sbusd_environment(), "SBUS_ADDRESS": bus.address},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("bob", "alice")
    }
    said = {name: process.communicate(timeout=60)[0] for name, process in running.items()}
    pids = {name: process.pid for name, process in running.items()}
    assert all(process.returncode == 0 for process in running.values())
    ids = f"!/cred/{os.getegid()}/{os.geteuid()}"
    assert said["alice"] == f"bob is {ids}/{pids['bob']}\n"
    assert said["bob"] == f"alice is {ids}/{pids['alice']}\n"
