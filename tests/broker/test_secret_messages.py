"""Secret messages with real processes and real users (PROTOCOL, "Secret messages").

What one process may subscribe to, and receives: `tests/protocol/05-secret-messages.t`.
"""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from tests.support.bus import PROJECT, Bus, running_bus, sbusd_environment
from tests.support.inheritance import inherited_connection
from tests.support.raw_client import WHOAMI, RawClient
from tests.support.secrets import OWN, address_of, secret, sync
from tests.support.users import STRANGER, as_user, become, directory_for_everybody, needs_root


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


@pytest.fixture(params=[2, 4], ids=["2 workers", "4 workers"], scope="module")
def open_bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    """A bus for every user of the host."""
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-go", workers=request.param) as bus,
    ):
        yield bus


# -- another user ----------------------------------------------------------------------------------


def generated_patterns(seed: int) -> list[bytes]:
    """Patterns that a user may try in order to read the messages of others."""
    dice = random.Random(seed)
    stranger = b"%d" % STRANGER
    some = [b"", b"*", b"*/", b"/", b"!*", b"!*/", b"*!/", b"*/*/*/*/*/", b"*/*/*/*/*/*"]
    some += [b"!*/cred/", b"*/cred/%b/%b/%b/" % OWN, b"!**/*/%b/" % OWN[0], b"!/", b"!/*/"]
    some += [
        secret((gid, uid, b""), rest)
        for gid, uid in product((b"", stranger), repeat=2)
        for rest in (b"", b"*", b"*/", b"secret", b"!/cred/*/*/*/")
    ]
    segments = [b"*", b"", b"!*", b"cred", b"c*", *OWN, b"secret", b"s*", b"**"]
    some += [
        dice.choice([b"*", b"!*", b"", b"x"])
        + b"".join(b"/" + segment for segment in dice.choices(segments, k=dice.randint(1, 7)))
        for _ in range(40)
    ]
    return some


@needs_root
def test_another_user_receives_nothing_whatever_it_subscribes_to(open_bus: Bus) -> None:
    """Hundreds of patterns on as many connections as there are workers; the owner receives all."""
    rests = (b"secret", b"", b"cred/secret", b"!/cred/%d/%d/1/secret" % (STRANGER, STRANGER))
    keys = [
        secret(ids, rest)
        for ids in product(*((b"", own) for own in OWN))
        for rest in rests
        if any(ids)
    ]
    with ExitStack() as stack:
        spies = [
            stack.enter_context(
                inherited_connection(address_of(open_bus), become(STRANGER, STRANGER))
            )
            for _ in range(4)
        ]
        owners = [stack.enter_context(open_bus.connect()) for _ in range(4)]
        for number, spy in enumerate(spies):
            patterns = generated_patterns(number)
            assert len(patterns) > 60
            for pattern in patterns:
                spy.send(b"SUB " + pattern)
            assert sync(spy) == []
        for owner in owners:
            owner.sub(secret(OWN, b""))
            owner.sub(secret((b"", b"", b""), b""))
            owner.sync()
        for number, key in enumerate(keys):
            owners[number % len(owners)].pub(key, b"for me")
        received = [owner.sync() for owner in owners]  # what they published has its place
        spies[0].send(b"MSG " + keys[0] + b"\0from a spy")
        spies[0].send(b"MSG public\0")
        assert sync(spies[0]) == [b"MSG public\0"]
        for client in spies[1:]:
            assert sync(client) == [b"MSG public\0"]
        sent = [b"MSG " + key + b"\0for me" for key in keys]
        sent.append(b"MSG " + keys[0] + b"\0from a spy")
        for owner, before in zip(owners, received, strict=True):
            assert sorted(before + owner.sync()) == sorted(sent)


RECEIVERS = [
    (("", "u1", ""), {"u1g1", "u1g2"}),
    (("g1", "", ""), {"u1g1", "u2g1"}),
    (("g1", "u1", ""), {"u1g1"}),
    (("g2", "u2", ""), set()),
    (("", "", ""), {"u1g1", "u1g2", "u2g1"}),
]
"""The ids that a key names, and the processes that receive it."""


@needs_root
def test_users_and_groups_of_real_processes(open_bus: Bus) -> None:
    numbers = {"u1": 65_001, "u2": 65_002, "g1": 65_101, "g2": 65_102, "": 0}
    people = {"u1g1": ("u1", "g1"), "u1g2": ("u1", "g2"), "u2g1": ("u2", "g1")}
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(
                inherited_connection(address_of(open_bus), become(numbers[user], numbers[group]))
            )
            for name, (user, group) in people.items()
        }
        for client in clients.values():
            client.send(b"SUB " + secret((b"", b"", b""), b""))
            assert sync(client) == []
        publisher = stack.enter_context(open_bus.connect())
        for named, receivers in RECEIVERS:
            ids = tuple(b"%d" % numbers[name] if name else b"" for name in named)
            publisher.pub(secret(ids), b"")
            publisher.sync()
            received = {name for name, client in clients.items() if sync(client)}
            assert received == receivers, named


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


@needs_root
def test_the_user_that_the_kernel_uses_for_foreign_ones_owns_nothing(open_bus: Bus) -> None:
    nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
    with inherited_connection(address_of(open_bus), become(nobody, STRANGER)) as client:
        client.send(b"SUB " + secret((b"", b"", b"")))
        assert sync(client) == []
        for ids in ((b"", b"%d" % nobody, b""), (b"%d" % STRANGER, b"", b"")):
            client.send(b"MSG " + secret(ids) + b"\0")
        assert sync(client) == [b"MSG " + secret((b"%d" % STRANGER, b"", b"")) + b"\0"]
        client.send(b"SUB " + secret((b"", b"%d" % nobody, b"")))
        assert client.receive() == b""


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
