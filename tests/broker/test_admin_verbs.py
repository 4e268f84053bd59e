"""Verbs of the administrator, on a real bus: they report what the clients did.

Clients publish, receive, lose and are refused a known number of messages, on three workers and, if
the test may become other users, as three users. Barriers show when all of it has happened; counters
that workers share with some delay are read again until they are as expected.
"""

import json
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import sbus
from sbus.cli.sbusctl.command import sbusctl
from tests.support.bus import Bus, running_bus
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile, wait_until
from tests.support.users import STRANGER, directory_for_everybody, effective_user, needs_root

USERS = (0, STRANGER, STRANGER - 1) if os.geteuid() == 0 else (os.geteuid(),) * 3
WORKERS = 3

Ctl = Callable[..., Any]


def connect(bus: Bus, uid: int) -> RawClient:
    with effective_user(uid):
        client = bus.connect()
        client.whoami()
    return client


def packet_bytes(key: bytes, payload: bytes = b"") -> int:
    return len(b"MSG %b\0%b" % (key, payload))


@contextmanager
def bus_for_everybody(*options: str) -> Iterator[Bus]:
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-go", *options, workers=WORKERS) as bus,
    ):
        yield bus


@pytest.fixture
def bus() -> Iterator[Bus]:
    with bus_for_everybody() as bus:
        yield bus


@pytest.fixture
def ctl(bus: Bus, capfd: pytest.CaptureFixture[str]) -> Ctl:
    """`sbusctl WORDS --json`: what it prints, decoded."""
    return lambda *words: json.loads(said(bus, capfd, *words, "--json"))


def said(bus: Bus, capfd: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """What the command prints, on standard output or, when it fails, on the other."""
    capfd.readouterr()
    found = 0
    try:
        sbusctl.main(["-a", bus.address, *words], prog_name="sbusctl", standalone_mode=False)
    except SystemExit as end:
        found = int(end.code or 0)
    output, errors = capfd.readouterr()
    assert (found, errors == "") == (status, not status), errors
    return errors if status else output


class Scene:
    """Three clients of each user, in turn on each worker: `clients[user][number]`."""

    def __init__(self, bus: Bus, stack: ExitStack) -> None:
        self.bus = bus
        self.clients = [
            [stack.enter_context(connect(bus, uid)) for _ in range(WORKERS)] for uid in USERS
        ]
        self.all = [client for those in self.clients for client in those]

    def sync(self) -> None:
        """All has happened that any client has asked for, and its consequences for the others."""
        for _ in range(2):
            for client in self.all:
                client.sync()


@pytest.fixture
def scene(bus: Bus) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(bus, stack)


def test_traffic_is_counted_to_the_message(scene: Scene, ctl: Ctl) -> None:
    (one, two, _), (three, four, _), (five, six, _) = scene.clients
    for client, pattern in ((one, b"lamps/*/state"), (three, b"lamps/3/state"), (five, b"")):
        client.sub(pattern)
    one.sub(b"lamps/")
    scene.sync()
    before = ctl("stats")
    asked = {c["client"]: c["activity"]["bytes_in"] for c in ctl("clients")["clients"]}
    for number in range(30):
        four.pub(b"lamps/3/state", b"%010d" % number)
    for _ in range(5):
        six.pub(b"audit", b"x" * 1_000)
    for _ in range(2):
        two.pub(b"a/!/b", b"refused")
    two.unsub(b"never subscribed to")
    bytes_of = {
        four: 30 * packet_bytes(b"lamps/3/state", b"0123456789"),
        six: 5 * packet_bytes(b"audit", b"x" * 1_000),
        two: 2 * packet_bytes(b"a/!/b", b"refused") + len(b"UNSUB never subscribed to"),
    }
    for client in (four, six, two):
        client.sync()
    received = [len(client.sync()) for client in (one, three, five)]
    assert received == [30, 30, 35]

    def is_counted() -> bool:
        return bool(ctl("stats")["traffic"]["delivered"] == before["traffic"]["delivered"] + 95)

    wait_until(is_counted, "95 deliveries")
    found = ctl("clients")
    by_number = found["clients"]
    assert (found["next"], found["unanswered"]) == (None, [])
    assert [c["uid"] for c in by_number] == [uid for uid in USERS for _ in range(WORKERS)]
    assert Counter(c["worker"] for c in by_number) == dict.fromkeys(range(WORKERS), WORKERS)
    assert {c["pid"] for c in by_number} == {os.getpid()}
    does = {
        client: c["activity"] | {"client": c["client"]}
        for client, c in zip(scene.all, by_number, strict=True)
    }
    syncs = len(b"CMSG !/cred/whoami")
    for client, sent in bytes_of.items():
        assert does[client]["bytes_in"] - asked[does[client]["client"]] == sent + syncs
    assert [does[client]["messages_in"] for client in (four, six, two)] == [30, 5, 0]
    assert [does[client]["delivered"] for client in (one, three, five)] == [30, 30, 35]
    assert does[five]["delivered_bytes"] == bytes_of[four] + bytes_of[six]
    assert [does[client]["subscriptions"] for client in (one, three, five)] == [2, 1, 1]
    assert does[two]["refused"] == 2, "what is ignored is not refused"
    assert sum(d["discarded"] + d["backlog"] for d in does.values()) == 0

    stats = ctl("stats")
    traffic = stats["traffic"]
    assert traffic["messages_in"] == 35
    assert traffic["accepted"] == traffic["delivered"] == 95
    assert traffic["delivered_bytes"] == 3 * bytes_of[four] + bytes_of[six]
    assert traffic["refused"] == {"reserved": 2, "unknown-unsubscription": 1}
    assert traffic["subscriptions"] == 4
    assert sum(traffic["latency"]["counts"]) == 95
    assert (stats["clients"], stats["users"]) == (9, len(set(USERS)))
    assert stats["connections_accepted"] == 9
    workers = ctl("workers")["workers"]
    assert [worker["clients"] for worker in workers] == [3, 3, 3]
    assert sum(worker["traffic"]["delivered"] for worker in workers) == 95
    assert sum(worker["traffic"]["messages_in"] for worker in workers) == 35
    assert {worker["state"] for worker in workers} == {"serving"}
    assert {worker["pid"] for worker in workers} < set(scene.bus.pids())


def top_by(scene: Scene, ctl: Ctl, by: str) -> list[dict[str, Any]]:
    """The rows while the first client publishes."""

    def publish(stop: threading.Event) -> None:
        while not stop.is_set():
            scene.all[0].pub(b"k/1", b"")
            scene.all[0].whoami()  # so that nobody misses any

    with meanwhile(publish):
        rows: list[dict[str, Any]] = ctl("top", "--by", by, "--count", "1", "--interval", "0.2")[
            "rows"
        ]
    assert sum(row["messages_in_per_second"] > 0 for row in rows) == 1
    return rows


@pytest.mark.parametrize(
    ("by", "count"), [("client", 3 * WORKERS), ("user", len(set(USERS))), ("worker", WORKERS)]
)
def test_top_shows_who_publishes(scene: Scene, ctl: Ctl, by: str, count: int) -> None:
    assert len(top_by(scene, ctl, by)) == count


def test_top_shows_the_beginnings_of_keys_and_who_receives_them(scene: Scene, ctl: Ctl) -> None:
    for client in scene.all[1:3]:
        client.sub(b"k/1")
        client.sync()
    (row,) = top_by(scene, ctl, "key")
    assert row["prefix"] == "k/"
    assert row["bytes_in_per_second"] == pytest.approx(8 * row["messages_in_per_second"])
    assert row["delivered_per_second"] == pytest.approx(2 * row["messages_in_per_second"])


def test_subscriptions_and_recipients_are_listed(scene: Scene, ctl: Ctl) -> None:
    (one, two, _), (three, _, _), (five, _, _) = scene.clients
    wanted = [
        (one, [b"a/b", b"a/b", b""]),
        (two, [b"a/*", b"\xff\x1b[2J"]),
        (three, [b"a/"]),
        (five, [b"b/"]),
    ]
    for client, patterns in wanted:
        for pattern in patterns:
            client.sub(pattern)
        client.sync()
    number = dict(zip(scene.all, (c["client"] for c in ctl("clients")["clients"]), strict=True))

    def subscriptions(*words: str) -> Counter[tuple[int, str]]:
        found = ctl("subs", *words)["subscriptions"]
        return Counter({(s["client"], s["pattern"]): s["count"] for s in found})

    first = Counter({(number[one], "a/b"): 2, (number[one], ""): 1})
    others = Counter({(number[two], "a/*"): 1, (number[three], "a/"): 1})
    unrelated = Counter({(number[two], "\\xff\\x1b[2J"): 1, (number[five], "b/"): 1})
    assert subscriptions() == first + others + unrelated
    assert subscriptions("a/b") == first + others
    assert subscriptions("\udcff\x1b*") == Counter(
        {(number[one], ""): 1, (number[two], "\\xff\\x1b[2J"): 1}
    )
    found = ctl("explain", "a/b")
    assert {r["client"]: sorted(r["patterns"]) for r in found["recipients"]} == {
        number[one]: ["", "a/b"],
        number[two]: ["a/*"],
        number[three]: ["a/"],
    }
    placed = {c["client"]: c["worker"] for c in ctl("clients")["clients"]}
    expected = sorted({placed[number[client]] for client in (one, two, three)})
    assert found["workers"] == expected
    assert (found["recipients_count"], found["excluded_count"], found["stalled_count"]) == (3, 0, 0)
    assert not found["secret"]
    users = {user["uid"]: user for user in ctl("users")["users"]}
    by_user = Counter(dict.fromkeys(USERS, 0))
    for client, patterns in wanted:
        by_user[USERS[next(i for i, c in enumerate(scene.clients) if client in c)]] += len(patterns)
    assert {uid: users[uid]["subscriptions"] for uid in set(USERS)} == dict(by_user)
    connections = Counter(uid for uid in USERS for _ in range(WORKERS))
    assert {uid: users[uid]["connections"] for uid in set(USERS)} == dict(connections)


def test_explain_publishes_nothing_that_another_client_receives(bus: Bus) -> None:
    """A subscriber to everything that answers nothing is not taken for a bridge, either."""
    with bus.connect() as everything:
        everything.sub(b"")
        everything.sync()
        explained = bus.sbusctl("explain", "a/b")
        assert (explained.returncode, explained.stderr) == (0, b"")
        assert b"1" in explained.stdout
        bridges = bus.sbusctl("bridges")
        assert (bridges.returncode, bridges.stderr) == (1, b"sbusctl: this bus has no bridge\n")
        assert everything.sync() == []


def test_explain_ends_well_when_a_member_named_bridge_does_not_answer(bus: Bus) -> None:
    with sbus.blocking.connect(bus.address) as silent:
        silent.subscribe(silent.whoami().secret_key("bridge/status"))
        silent.join("bridge")
        explained = bus.sbusctl("explain", "a/b")
    assert explained.returncode == 0
    assert b"whether it crosses the bridge is unknown" in explained.stderr


def test_me_shows_the_user_that_asks(
    scene: Scene, bus: Bus, ctl: Ctl, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, those in enumerate(scene.clients):
        those[0].sub(b"mine/%d" % number)
    scene.sync()
    for number, uid in enumerate(USERS):
        with effective_user(uid):
            found = ctl("me")
        assert found["user"]["uid"] == uid
        assert {client["uid"] for client in found["clients"]} == {uid}
        assert len(found["clients"]) == found["user"]["connections"]
        assert found["user"]["connections"] == WORKERS * USERS.count(uid) + 1
        patterns = {entry["pattern"] for entry in found["subscriptions"]}
        assert patterns == {f"mine/{n}" for n, other in enumerate(USERS) if other == uid}
        assert f"mine/{number}" in patterns
    shown = said(bus, capfd, "me")
    assert "connections" in shown
    assert said(bus, capfd, "--dialect", "dot", "me", status=1) == (
        f"sbusctl: the bus at {bus.address} has the slash dialect: leave --dialect out\n"
    )


def test_reload_and_drain_report_what_they_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "sbus.toml"
    config.write_text("[limits]\nuser_connections_max = 100\n")
    with running_bus(tmp_path, "--config", str(config)) as bus:
        config.write_text("[limits]\nuser_connections_max = 101\nlog_bytes = 16777216\n")
        result = json.loads(said(bus, capfd, "reload", "--json"))
        assert result["applied"] == ["limits.user_connections_max"]
        assert result["needs_restart"] == ["limits.log_bytes"]
        config.write_text("[limits]\nuser_connection_max = 100\n")
        assert "user_connection_max" in said(bus, capfd, "reload", status=1)
        uid = str(os.geteuid())
        limits = json.loads(said(bus, capfd, "limit", uid, "--json"))["after"]
        assert limits["connections_max"] == 101
        with bus.connect() as client:
            client.whoami()
            assert said(bus, capfd, "drain", "--timeout", "0.1", "--wait") == "1 client left\n"
            assert client.receive_until_closed() == []
        assert bus.process.wait(60) == 0
        assert "cannot connect to" in said(bus, capfd, "version", status=1)


@needs_root
def test_missing_rights_are_an_error(bus: Bus, capfd: pytest.CaptureFixture[str]) -> None:
    with effective_user(STRANGER):
        complaint = said(bus, capfd, "stats", status=1)
        assert "Permission denied" in complaint
        assert "may administer it" in complaint
        os.seteuid(0)
        os.chmod(f"{bus.address}.admin", stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
        os.seteuid(STRANGER)
        assert "may administer it (not-allowed)" in said(bus, capfd, "stats", status=1)
