"""Access rules on a real bus: denied connections, and what is logged.

Which packets and deliveries they deny to whom: `tests/fuzz/test_running_buses.py`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sbus.unix.user_names import local_user_names
from tests.support.bus import Bus, running_bus
from tests.support.raw_client import RawClient
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

ME = os.geteuid()
NAME = local_user_names().get(ME)
SHOWN_ME = f"{ME} ({NAME})" if NAME else str(ME)
NO_CONNECTION = b"CMSG !/error\0not-admitted you may not connect to this bus"


@contextmanager
def bus_with(directory: Path, rules: str, *options: str) -> Iterator[Bus]:
    """A bus with these rules."""
    path = directory / "sbus.toml"
    path.write_text(rules)
    with running_bus(directory, "--config", str(path), *options, workers=1) as bus:
        yield bus


def last_words(address: str) -> list[bytes]:
    """The packets that a silent client receives before the bus ends the connection."""
    with RawClient(address) as client:
        return client.receive_until_closed()


def is_served(address: str) -> bool:
    with RawClient(address) as client:
        return not client.sync()


def test_user_who_may_not_connect_is_told_and_logged(tmp_path: Path) -> None:
    rules = f'[[rules]]\ndeny = ["connect"]\nusers = [{ME}]'
    with bus_with(tmp_path, rules) as bus:
        assert last_words(bus.address) == [NO_CONNECTION]
        (line,) = bus.stderr_text().splitlines()
        program = Path("/proc/self/comm").read_text().strip()
        assert line == (
            f"sbusd: refused connection of uid {SHOWN_ME}, pid {os.getpid()} ({program}): rules[0]"
        )
        done = bus.sbusctl("whoami")
        assert done.returncode == 1
        assert b"you may not connect to this bus (not-admitted)" in done.stderr


@needs_root
def test_users_and_all_groups_of_a_peer_count() -> None:
    other = STRANGER - 1
    rules = f"""
        [[rules]]
        deny = ["connect"]
        groups = [{STRANGER}, {other}]
        [[rules]]
        allow = ["connect"]
        users = [{other}]
        """
    with (
        directory_for_everybody() as directory,
        bus_with(directory, rules, "-o") as bus,
    ):

        def refused() -> bool:
            return last_words(bus.address) == [NO_CONNECTION]

        def served() -> bool:
            return is_served(bus.address)

        assert as_user(refused, uid=STRANGER, gid=STRANGER), "by its primary group"
        assert as_user(refused, uid=STRANGER, gid=1, groups=[1, 2, other]), "by another group"
        assert as_user(served, uid=STRANGER, gid=1, groups=[1, 2])
        assert as_user(served, uid=other, gid=STRANGER), "by a later rule about the user"
        assert is_served(bus.address)
        assert f"uid {STRANGER}, " in bus.stderr_text()


def test_a_refusal_is_logged_once_in_an_interval(tmp_path: Path) -> None:
    key = b"audit/\n\xff" + b"k" * 1000
    rules = '[[rules]]\ndeny = ["publish"]\nkeys = ["audit/"]'
    with bus_with(tmp_path, rules) as bus, bus.connect() as client:
        for _ in range(200):
            client.pub(key, b"")
        assert client.sync() == [], "who did not ask for notices gets none"
        (line,) = bus.stderr_text().splitlines()
    assert line.startswith(
        f"sbusd: client of uid {SHOWN_ME}, pid {os.getpid()} may not publish under this key: "
        r"'audit/\x0a\xffkkk"
    )
    assert line.endswith("...' (rules[0])")
    assert len(line) < 250
