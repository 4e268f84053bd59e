"""Access rules on a real bus: denied connections, packets and deliveries, and no others."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sbus.unix.user_names import local_user_names
from tests.support.bus import Bus, running_bus
from tests.support.processes import clients_on_each
from tests.support.raw_client import RawClient
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

ME = os.geteuid()
NAME = local_user_names().get(ME)
SHOWN_ME = f"{ME} ({NAME})" if NAME else str(ME)
NO_CONNECTION = b"CMSG !/error\0not-admitted you may not connect to this bus"
NO_PUBLISHING = b"CMSG !/error\0not-allowed you may not publish under this key"
NO_SUBSCRIBING = b"CMSG !/error\0not-allowed you may not subscribe to this pattern"


@contextmanager
def bus_with(directory: Path, rules: str, *options: str, workers: int = 2) -> Iterator[Bus]:
    """A bus with these rules."""
    path = directory / "sbus.toml"
    path.write_text(rules)
    with running_bus(directory, "--config", str(path), *options, workers=workers) as bus:
        yield bus


def last_words(address: str) -> list[bytes]:
    """The packets that a silent client receives before the bus ends the connection."""
    with RawClient(address) as client:
        return client.receive_until_closed()


def is_served(address: str) -> bool:
    with RawClient(address) as client:
        return not client.sync()


def noticing(bus: Bus) -> RawClient:
    client = bus.connect()
    client.control(b"!/notices/on")
    return client


# -- connect ---------------------------------------------------------------------------------------


def test_user_who_may_not_connect_is_told_whatever_it_has_sent_and_logged(tmp_path: Path) -> None:
    """Neither a reset nor an error of send hides the last notice."""
    rules = f'[[rules]]\ndeny = ["connect"]\nusers = [{ME}]'
    with bus_with(tmp_path, rules, workers=1) as bus:
        assert last_words(bus.address) == [NO_CONNECTION]
        for _ in range(20):
            with bus.connect() as client:
                with suppress(BrokenPipeError):  # it was turned away in the meantime
                    for _ in range(20):
                        client.sub(b"a")
                assert client.receive_until_closed() == [NO_CONNECTION]
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
        bus_with(directory, rules, "-o", workers=1) as bus,
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


# -- publish ---------------------------------------------------------------------------------------

AUDITED = """
    [[rules]]
    deny = ["publish"]
    keys = ["audit/", "secret*"]
    [[rules]]
    allow = ["publish"]
    keys = ["audit/*/open"]
    """


def test_refused_messages_reach_no_client_and_the_others_flow(tmp_path: Path) -> None:
    with (
        bus_with(tmp_path, AUDITED) as bus,
        clients_on_each(bus, 2) as ((near,), (far,)),
        noticing(bus) as publisher,
    ):
        for client in (near, far):
            client.sub(b"")
            client.sync()
        for key in (b"a", b"audit/x", b"b", b"audit/x/open", b"secrets", b"audit/", b"secrets/c"):
            publisher.pub(key, key)
        assert publisher.sync() == [NO_PUBLISHING] * 3
        expected = [
            b"MSG " + key + b"\0" + key for key in (b"a", b"b", b"audit/x/open", b"secrets/c")
        ]
        for client in (near, far):
            assert client.sync() == expected


def test_a_refusal_is_logged_once_in_an_interval(tmp_path: Path) -> None:
    key = b"audit/\n\xff" + b"k" * 1000
    with bus_with(tmp_path, AUDITED, workers=1) as bus, bus.connect() as client:
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


def test_a_publisher_that_was_held_back_is_still_refused(tmp_path: Path) -> None:
    """A batch in which subscriptions come and go between allowed and refused messages."""
    with bus_with(tmp_path, AUDITED) as bus, noticing(bus) as client:
        for number in range(50):
            client.sub(b"a/%d" % number)
            client.pub(b"a/%d" % number, b"")
            client.pub(b"audit/%d" % number, b"")
        packets = client.sync()
    assert packets == [
        packet for number in range(50) for packet in (b"MSG a/%d\0" % number, NO_PUBLISHING)
    ]


# -- subscribe -------------------------------------------------------------------------------------

HIDDEN = """
    [[rules]]
    deny = ["subscribe"]
    keys = ["audit/"]
    [[rules]]
    allow = ["subscribe"]
    keys = ["audit/*/open"]
    """


def test_hidden_keys_are_refused_or_filtered_on_every_worker(tmp_path: Path) -> None:
    with (
        bus_with(tmp_path, HIDDEN) as bus,
        clients_on_each(bus, 2) as ((near,), (far,)),
        bus.connect() as publisher,
    ):
        for client in (near, far):
            client.control(b"!/notices/on")
            for pattern in (b"", b"*/", b"audit*/", b"audit/", b"audit/*/open"):
                client.sub(pattern)
            assert client.sync() == []
            for pattern in (b"audit/x", b"audit/*", b"audit/*/closed/"):
                client.sub(pattern)
            assert client.sync() == [NO_SUBSCRIBING] * 3
        for key in (b"audit/x", b"audit", b"audit/x/open", b"audit/x/open/y", b"audits/x"):
            publisher.pub(key, b"")
        publisher.sync()
        for client in (near, far):
            assert client.sync() == [b"MSG audit\0", b"MSG audit/x/open\0", b"MSG audits/x\0"]


@needs_root
def test_rules_of_one_user_do_not_hide_anything_from_others() -> None:
    rules = f'[[rules]]\ndeny = ["subscribe"]\nusers = [{STRANGER}]\nkeys = ["audit/"]'
    with (
        directory_for_everybody() as directory,
        bus_with(directory, rules, "-o", workers=1) as bus,
        bus.connect() as mine,
    ):
        mine.sub(b"")
        mine.sync()

        def sees_half() -> bool:
            with bus.connect() as client:
                client.sub(b"")
                client.pub(b"audit/x", b"")
                client.pub(b"b", b"")
                return client.sync() == [b"MSG b\0"]

        assert as_user(sees_half)
        assert mine.sync() == [b"MSG audit/x\0", b"MSG b\0"]


# -- secret messages -------------------------------------------------------------------------------
