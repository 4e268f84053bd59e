"""Each setting that can change while the bus runs takes effect with a reload, as clients see it.

One bus reads one file after the other, and clients try what they can do before and after. Effects
that show only inside are tested in `tests/unit/broker/worker/test_settings_update.py`.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from sbus.bus_options import reloadable_options
from sbus.limits import RELOADABLE_LIMITS, UserLimits
from tests.support.admin import Admin, administer
from tests.support.bad_configurations import toml
from tests.support.bus import Bus, bus_of, running_bus
from tests.support.flood import is_answered, send_until_held, send_while_read
from tests.support.quotas import share
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

ALWAYS: dict[str, dict[str, Any]] = {
    "bus": {"group": True, "others": True},
    "limits": {"packet_bytes_max": 4096},
}
PATTERN_BYTES = 6 + 64
BURST = 500
"""More messages of this size than a socket takes, but not more than two do."""
PAYLOAD_BYTES = 500
ONE_HOUR = 3600


class Reloading:
    """A bus, and the file that it reads."""

    def __init__(self, bus: Bus, admin: Admin, file: Path) -> None:
        self.bus = bus
        self.admin = admin
        self._file = file

    def reload(self, more: str = "", **tables: dict[str, Any]) -> list[str]:
        """Have these settings and no others; returns the reported changes."""
        write(self._file, more, **tables)
        result = self.admin.ask("reload")
        assert result["needs_restart"] == result["unanswered"] == []
        return list(result["applied"])

    def rest(self) -> None:
        """Wait until all clients have left, and nothing is left of them."""
        wait_until(lambda: self.admin.ask("stats")["clients"] == 0, "all have left")
        wait_until(
            lambda: all(not user["subscriptions"] for user in self.admin.ask("users")["users"]),
            "their subscriptions are gone",
        )


def write(file: Path, more: str = "", **tables: dict[str, Any]) -> None:
    text = ""
    for name in ALWAYS.keys() | tables.keys():
        fields = {**ALWAYS.get(name, {}), **tables.get(name, {})}
        text += f"[{name}]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in fields.items())
    file.write_text(text + more)


@pytest.fixture(scope="module")
def reloading() -> Iterator[Reloading]:
    with directory_for_everybody() as directory:
        file = directory / "sbus.toml"
        write(file)
        running = running_bus(directory, "--config", str(file), workers=1)
        with running as bus, administer(bus) as admin:
            yield Reloading(bus, admin, file)


# -- what clients can do ---------------------------------------------------------------------------
def subscriptions_accepted(bus: Bus) -> int:
    """Of ten."""
    with newcomer(bus) as client:
        for number in range(10):
            client.sub(b"%06d" % number)
        return 10 - len(client.sync())


def shapes_accepted(bus: Bus) -> int:
    """Of ten, which take a step each."""
    with newcomer(bus) as client:
        for number in range(10):
            client.sub(b"x" * number + b"*")
        return 10 - len(client.sync())


def connections_accepted(bus: Bus) -> int:
    """Of four."""
    with ExitStack() as stack:
        clients = [stack.enter_context(bus.connect()) for _ in range(4)]
        return sum(is_served(client) for client in clients)


def waits_to_connect(bus: Bus) -> bool:
    """Whether the last 20 of 30 connections in a row come at no more than 10 a second."""
    began_at = time.monotonic()
    for _ in range(30):
        with bus.connect() as client:
            client.sync()
    return time.monotonic() - began_at > 1.9


def is_served(client: RawClient) -> bool:
    try:
        client.sync()
    except (AssertionError, BrokenPipeError, ConnectionResetError):
        return False
    return True


@contextmanager
def newcomer(bus: Bus) -> Iterator[RawClient]:
    with bus.connect() as client:
        client.control(b"!/notices/on")
        client.whoami()
        yield client


def burst_message(number: int) -> bytes:
    return b"MSG k\0%d " % number + bytes(PAYLOAD_BYTES)


def burst(bus: Bus) -> list[bytes]:
    """What a client receives of `BURST` messages that it did not read at once, up
    to the last of them or the gap where it would be; the end of the connection is b""."""
    with newcomer(bus) as slow, newcomer(bus) as publisher:
        slow.sub(b"k")
        slow.whoami()
        for number in range(BURST):
            publisher.send(burst_message(number))
        publisher.sync()
        received: list[bytes] = []
        seen = 0
        while seen < BURST:
            packet = slow.receive()
            received.append(packet)
            if not packet:
                break
            lost = packet.removeprefix(b"CMSG !/lost\0")
            seen += 1 if lost == packet else int(lost)
        return received


def loses(bus: Bus) -> bool:
    return any(packet.startswith(b"CMSG !/lost") for packet in burst(bus))


def holds_its_publisher(bus: Bus) -> bool:
    """Whether a client that blocks and does not read does so."""
    with newcomer(bus) as slow, newcomer(bus) as publisher, newcomer(bus) as witness:
        slow.control(b"blocking/soft/block")
        slow.sub(b"k")
        slow.whoami()
        packets = [*map(burst_message, range(BURST)), b"CMSG !/cred/whoami"]
        _, is_held = send_while_read(publisher, packets, [witness])
        return is_held or not is_answered(publisher, [witness])


def is_disconnected(bus: Bus) -> bool:

    return burst(bus)[-1] == b""


def is_in_order(bus: Bus) -> bool:
    received = burst(bus)
    return received == [burst_message(number) for number in range(BURST)]


def taken_by_the_socket(bus: Bus) -> bool:
    """Whether a socket takes more than a few packets."""
    return len(burst(bus)) > 50


def waits_for_the_rate(bus: Bus) -> bool:
    """Whether 20 messages take longer than half a second: one may come at once, and each further
    one waits for 1/20 s."""
    with newcomer(bus) as client:
        began_at = time.monotonic()
        for _ in range(20):
            client.pub(b"nobody", b"")
            client.sync()
        return time.monotonic() - began_at > 0.5


def lines_of_complaint(bus: Bus) -> int:
    """About three messages that may not be published."""
    before = bus.stderr_text().count("\n")
    with newcomer(bus) as client:
        for _ in range(3):
            client.pub(b"denied", b"")
            client.sync()
    return bus.stderr_text().count("\n") - before


def watchers_accepted(bus: Bus) -> int:
    """Of three, once those of before are gone."""
    with administer(bus) as first, administer(bus) as second, administer(bus) as third:
        wait_until(lambda: may_watch(first), "nobody else watches")
        return 1 + may_watch(second) + may_watch(third)


def may_watch(admin: Admin) -> bool:
    reply = admin.exchange(b'{"verb": "events"}')
    return "result" in reply


def stranger_may_connect(bus: Bus) -> bool:
    def knocks() -> bool:
        with RawClient(bus.address) as client:
            return is_served(client)

    return as_user(knocks)


class Case(NamedTuple):
    """A setting, its value before and after, and what a client finds then. `beside` is in force all
    the time."""

    table: str
    field: str
    before: Any
    after: Any
    find: Callable[[Bus], Any]
    found_before: Any
    found_after: Any
    beside: Mapping[str, dict[str, Any]] = MappingProxyType({})
    rules: str = ""


LIMIT_CASES = [
    Case("limits", "user_connections_max", 50, 2, connections_accepted, 4, 2),
    Case(
        *("limits", "user_connections_per_second_max", 10**6, 10, waits_to_connect, False, True),
        beside={"limits": {"user_connections_max": 10}},
    ),
    Case("limits", "user_subscriptions_max", 8, 4, subscriptions_accepted, share(8, 0, 0), 2),
    *(
        Case(
            "limits",
            f"{whose}_subscription_bytes_max",
            8 * PATTERN_BYTES,
            4 * PATTERN_BYTES,
            subscriptions_accepted,
            *found,
        )
        for whose, found in (("user", (4, 2)), ("bus", (4, 2)), ("client", (8, 4)))
    ),
    Case("limits", "user_match_steps_max", 8, 4, shapes_accepted, 7, 3),
    Case("limits", "bus_match_steps_max", 8, 4, shapes_accepted, 4, 2),
    *(
        Case("limits", name, 10**9, 0, loses, False, True)
        for name in (
            *("backlog_messages_max", "backlog_bytes_max"),
            *("user_backlog_bytes_max", "bus_backlog_bytes_max"),
        )
    ),
    Case("limits", "user_messages_per_second_max", 10**6, 20, waits_for_the_rate, False, True),
    Case("limits", "user_messages_per_second_max", 20, 10**6, waits_for_the_rate, True, False),
    Case("limits", "user_held_seconds_max", 60, 0, holds_its_publisher, True, False),
    Case(
        *("limits", "socket_buffer_bytes", 100_000, 4096, taken_by_the_socket, True, False),
        beside={"bus": {"soft": "discard"}},
    ),
    Case("limits", "watchers_max", 16, 1, watchers_accepted, 3, 1),
    Case(
        *("limits", "log_interval_seconds", 1e-6, ONE_HOUR, lines_of_complaint, 3, 0),
        rules='[[rules]]\ndeny = ["publish"]\nkeys = ["denied"]\n',
    ),
]
BUS_CASES = [
    Case("bus", "soft", "queue", "discard", loses, False, True),
    Case("bus", "soft", "discard", "queue", loses, True, False),
    Case(
        *("bus", "hard", "discard", "error", is_disconnected, False, True),
        beside={"limits": {"backlog_messages_max": 0}},
    ),
    Case("bus", "order", "queue", "stack", is_in_order, True, False),
]
ELSEWHERE = {
    # Seen here, but not by a case.
    *("users", "group", "others", "exit_when_empty"),
    # Seen in the worker, or in the front.
    *(
        "stop_seconds_max",
        "quantum_units",
        "route_cache_bytes_max",
        "rule_cache_bytes_max",
        "worker_busy_percent_max",
    ),
    *("fan_out_us_max", "drain_packets_max", "handoff_clients_max", "client_moves_per_second_max"),
}


def test_every_setting_that_can_change_is_tested() -> None:
    tested = {case.field for case in (*LIMIT_CASES, *BUS_CASES)} | ELSEWHERE
    assert tested == RELOADABLE_LIMITS | reloadable_options(without_mode=True)


@pytest.mark.parametrize("case", [*LIMIT_CASES, *BUS_CASES], ids=lambda case: case.field)
def test_a_changed_setting_takes_effect(reloading: Reloading, case: Case) -> None:
    def settings(value: Any) -> dict[str, dict[str, Any]]:
        beside = {name: dict(fields) for name, fields in case.beside.items()}
        beside.setdefault(case.table, {})[case.field] = value
        return beside

    reloading.reload(case.rules, **settings(case.before))
    reloading.rest()
    assert case.find(reloading.bus) == case.found_before
    reloading.rest()
    assert reloading.reload(case.rules, **settings(case.after)) == [f"{case.table}.{case.field}"]
    assert case.find(reloading.bus) == case.found_after


def test_limits_of_single_users_come_and_go(reloading: Reloading) -> None:
    reloading.reload()
    reloading.rest()
    assert subscriptions_accepted(reloading.bus) == 10
    reloading.rest()
    of_own: dict[str, Any] = {f"users.{OWN}": {"subscriptions_max": 4}}
    assert reloading.reload(**of_own) == [f"users.{OWN}.subscriptions_max"]
    assert subscriptions_accepted(reloading.bus) == 2
    reloading.rest()
    assert reloading.reload() == [f"users.{OWN}.subscriptions_max"]
    assert subscriptions_accepted(reloading.bus) == 10


OWN = str(os.getuid())


def test_some_of_very_many_changes_are_named_and_the_others_counted(reloading: Reloading) -> None:
    names = [f"{uid}" for uid in range(100_000, 101_000)]
    fields = "".join(f"{name} = 5\n" for name in UserLimits.__struct_fields__)
    count = len(names) * len(UserLimits.__struct_fields__)
    with administer(reloading.bus) as watcher:
        watcher.ask("events")
        reloading.reload()
        applied = reloading.reload("".join(f"[users.{name}]\n{fields}" for name in names))
        assert len(applied) < count
        assert applied[-1] == f"{count - len(applied) + 1:,} more"
        while "configuration-reloaded" not in (packet := watcher.sock.recv(2**20)).decode():
            assert packet
        assert len(packet) <= 131_072
    reloading.reload()


# -- single users ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reload", "limit"])
def test_a_publisher_that_waited_for_the_old_rate_continues_at_the_new_one(
    reloading: Reloading, how: str
) -> None:
    reloading.reload(limits={"user_messages_per_second_max": 1})
    with newcomer(reloading.bus) as client:
        for number in range(100):
            client.pub(b"nobody", b"%d" % number)
        client.control(b"!/cred/whoami")
        if how == "reload":
            reloading.reload()
        else:
            limits = {"messages_per_second_max": 100_000}
            reloading.admin.ask("limit", uid=os.getuid(), limits=limits)
        assert client.receive(timeout_s=5).startswith(b"CMSG !/cred/whoami")


def test_a_held_publisher_continues_when_holding_is_no_longer_allowed(reloading: Reloading) -> None:
    reloading.reload(limits={"user_held_seconds_max": 60.0})
    with (
        newcomer(reloading.bus) as slow,
        newcomer(reloading.bus) as publisher,
        newcomer(reloading.bus) as witness,
    ):
        slow.control(b"blocking/soft/block")
        slow.sub(b"k")
        slow.whoami()
        send_until_held(publisher, repeat(burst_message(0)), [witness])
        reloading.admin.ask("limit", uid=os.getuid(), limits={"held_seconds_max": 0.0})
        publisher.send(b"CMSG !/cred/whoami", timeout_s=5)
        assert publisher.receive(timeout_s=5).startswith(b"CMSG !/cred/whoami")


@needs_root
def test_the_users_that_may_connect_change(reloading: Reloading) -> None:
    reloading.reload()
    assert stranger_may_connect(reloading.bus)
    assert reloading.reload(bus={"users": ["root"]}) == ["bus.users"]
    assert not stranger_may_connect(reloading.bus)
    assert reloading.reload(bus={"users": [STRANGER]}) == ["bus.users"]
    assert stranger_may_connect(reloading.bus)


# -- buses of their own ----------------------------------------------------------------------------


@needs_root
def test_group_and_others_where_the_address_has_no_mode(tmp_path: Path) -> None:
    file = tmp_path / "sbus.toml"
    file.touch()
    name = b"\0sbus-test-%d" % os.getpid()
    address = f"/dev/unix/abstract/{name.hex()}"
    admin_path = str(tmp_path / "admin")
    arguments = ("-f", "-a", address, "--config", str(file), "--admin-address", admin_path)
    with bus_of(tmp_path, *arguments, address=address) as bus, Admin(admin_path) as admin:
        assert not stranger_may_connect(bus)
        file.write_text("[bus]\nothers = true")
        assert admin.ask("reload")["applied"] == ["bus.others"]
        assert stranger_may_connect(bus)
        file.write_text("[bus]\ngroup = true")
        assert admin.ask("reload")["applied"] == ["bus.group", "bus.others"]
        assert not stranger_may_connect(bus)


def test_exit_when_empty_takes_effect(tmp_path: Path) -> None:
    file = tmp_path / "sbus.toml"
    file.touch()
    with running_bus(tmp_path, "--config", str(file), workers=1) as bus, administer(bus) as admin:
        with bus.connect() as client:
            client.whoami()
        wait_until(lambda: admin.ask("stats")["clients"] == 0, "it has left")
        file.write_text("[bus]\nexit_when_empty = true")
        assert admin.ask("reload")["applied"] == ["bus.exit_when_empty"]
        with bus.connect() as client:
            client.whoami()
        assert bus.process.wait(60) == 0


def test_the_command_line_keeps_its_precedence(tmp_path: Path) -> None:
    file = tmp_path / "sbus.toml"
    file.write_text("[bus]\nworkers = 3\nsoft = 'discard'\n[limits]\nuser_connections_max = 1\n")
    options = ("--config", str(file), "--soft", "queue", "--limit", "user_connections_max=50")
    with running_bus(tmp_path, *options, workers=1) as bus, administer(bus) as admin:
        assert admin.ask("version")["workers"] == 1
        assert not loses(bus)
        changed = "[bus]\nsoft = 'error'\norder = 'stack'\n[limits]\nuser_connections_max = 2"
        file.write_text(changed)
        assert admin.ask("reload")["applied"] == ["bus.order"]
        assert not loses(bus)
