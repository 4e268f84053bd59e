"""Verbs of sbusctl that need more of a bus than answers to single requests, on a real one: with
three workers and, if the test may become other users, three users.

What each verb asks and prints: `tests/unit/cli/sbusctl/test_admin_verbs.py`.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import sbus
from sbus.cli.sbusctl.command import sbusctl
from tests.support.bus import Bus, running_bus
from tests.support.processes import several_clients
from tests.support.threads import meanwhile, wait_until
from tests.support.users import STRANGER, directory_for_everybody, effective_user, needs_root

USERS = (0, STRANGER, STRANGER - 1) if os.geteuid() == 0 else (os.geteuid(),) * 3

Ctl = Callable[..., Any]


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-go", workers=3) as bus,
    ):
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


def test_top_shows_the_beginnings_of_keys_and_who_receives_them(bus: Bus, ctl: Ctl) -> None:
    with several_clients(bus, 3) as (publisher, *subscribers):
        for client in subscribers:
            client.sub(b"k/1")
            client.sync()

        def publish(stop: threading.Event) -> None:
            while not stop.is_set():
                publisher.pub(b"k/1", b"")
                publisher.whoami()  # so that nobody misses any

        with meanwhile(publish):
            (row,) = ctl("top", "--by", "key", "--count", "1", "--interval", "0.2")["rows"]
            for by, count in (("client", 3), ("user", 1), ("worker", 3)):
                rows = ctl("top", "--by", by, "--count", "1", "--interval", "0.2")["rows"]
                assert len(rows) == count
                assert sum(one["messages_in_per_second"] > 0 for one in rows) == 1
    assert row["prefix"] == "k/"
    assert row["messages_in_per_second"] > 0
    assert row["bytes_in_per_second"] == pytest.approx(8 * row["messages_in_per_second"])
    assert row["delivered_per_second"] == pytest.approx(2 * row["messages_in_per_second"])


def test_explain_publishes_nothing_that_another_client_receives(
    bus: Bus, capfd: pytest.CaptureFixture[str]
) -> None:
    """A subscriber to everything that answers nothing is not taken for a bridge, either."""
    with bus.connect() as everything:
        everything.sub(b"")
        everything.sync()
        assert "1" in said(bus, capfd, "explain", "a/b")
        assert said(bus, capfd, "bridges", status=1) == "sbusctl: this bus has no bridge\n"
        assert everything.sync() == []


def test_explain_ends_well_when_a_member_named_bridge_does_not_answer(bus: Bus) -> None:
    with sbus.blocking.connect(bus.address) as silent:
        silent.subscribe(silent.whoami().secret_key("bridge/status"))
        silent.join("bridge")
        explained = bus.sbusctl("explain", "a/b")
    assert explained.returncode == 0
    assert b"whether it crosses the bridge is unknown" in explained.stderr


def test_me_shows_the_user_that_asks(bus: Bus, ctl: Ctl) -> None:
    wait_until(lambda: ctl("stats")["clients"] == 0, "those of other tests have left")
    with ExitStack() as stack:
        for number, uid in enumerate(USERS):
            with effective_user(uid):
                client = stack.enter_context(bus.connect())
            client.sub(b"mine/%d" % number)
            client.sync()
        for number, uid in enumerate(USERS):
            with effective_user(uid):
                found = ctl("me")
            assert found["user"]["uid"] == uid
            assert {client["uid"] for client in found["clients"]} == {uid}
            assert len(found["clients"]) == found["user"]["connections"]
            patterns = {entry["pattern"] for entry in found["subscriptions"]}
            assert patterns == {f"mine/{n}" for n, other in enumerate(USERS) if other == uid}
            assert f"mine/{number}" in patterns


def test_drain_says_who_is_left_and_waits_for_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running_bus(tmp_path) as bus:
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
