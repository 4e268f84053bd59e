"""The admin socket: who may use it, which requests are valid, and that no worker delays it."""

import hashlib
import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin import Admin, administer
from tests.support.bus import Bus, bus_of, running_bus
from tests.support.processes import clients_on_each, stopped, worker_pids
from tests.support.streams import events_of
from tests.support.users import as_user, directory_for_everybody, needs_root

BAD_REQUESTS = [
    b"",
    b"\xff\x00",
    b'{"verb": "explain", "key": "\xff"}',
    b'{"verb": "stats", "extra": ' + b"[" * 60_000,
    b"stats",
    b'{"verb": 7}',
    b'{"verb": "stats", "id": "seven"}',
    b'{"verb": "stats", "extra": 1}',
    b'{"verb": "kick"}',
    b'{"verb": "kick", "client": -1}',
    b'{"verb": "clients", "limit": 0}',
    b'{"verb": "clients", "limit": 301}',
    b'{"verb": "subs", "after": "1:2"}',
    b'{"verb": "subs", "after": "1:2:-3"}',
    b'{"verb": "explain", "key": "a/!/b"}',
    b'{"verb": "explain", "key": "a\\\\q"}',
    b'{"verb": "limit", "uid": 0, "limits": {"connections_max": 0}}',
    b'{"verb": "limit", "uid": -1}',
    b'{"verb": "stats"}' + b" " * 65_536,
]
NAMED = [
    (b'{"verb": "stats", "version": 2}', "unsupported-version", "version"),
    (b'{"verb": "limit", "uid": 0, "limits": {"conections_max": 1}}', "bad-request", "connections"),
    (b'{"verb": "explian"}', "unknown-verb", "explain"),
    (b'{"verb": "drain", "timeout_seconds": -1}', "bad-request", "timeout_seconds"),
    (b'{"verb": "kick", "client": 999999}', "not-found", "999999"),
]
"""What is wrong is in the text."""


@pytest.mark.parametrize(
    ("packet", "code", "named"), [*((bad, "bad-request", "") for bad in BAD_REQUESTS), *NAMED]
)
def test_a_bad_request_is_explained_and_the_next_one_answered(
    shared_bus: Bus, packet: bytes, code: str, named: str
) -> None:
    with administer(shared_bus) as admin:
        if packet:
            reply = admin.exchange(packet)
            assert reply["error"]["code"] == code
            assert named in reply["error"]["text"] != ""
            assert "\n" not in reply["error"]["text"]
            assert admin.ask("version")["workers"] == 2
        else:
            admin.sock.send(packet)
    with administer(shared_bus) as admin:
        assert admin.ask("version")["workers"] == 2


def test_every_request_has_its_reply_in_order(shared_bus: Bus) -> None:
    with administer(shared_bus) as admin:
        for number in range(50):
            admin.sock.send(json.dumps({"verb": "version", "id": number}).encode())
        assert [admin.receive()["id"] for _ in range(50)] == list(range(50))


def test_a_client_that_does_not_read_replies_delays_no_other(shared_bus: Bus) -> None:
    with administer(shared_bus) as rude, administer(shared_bus) as admin:
        rude.sock.setblocking(False)

        def ask_for_ever() -> None:
            while True:
                rude.sock.send(b'{"verb": "stats"}')

        with pytest.raises(BlockingIOError):
            ask_for_ever()
        assert admin.ask("version")["workers"] == 2


@needs_root
def test_only_administrators_are_answered() -> None:
    """At an abstract address; at a path they are let in by its mode."""
    with (
        directory_for_everybody() as directory,
        bus_of(directory, "-fgo", "-a", "/dev/unix/abstract") as bus,
    ):
        digits = bus.address.rpartition("/")[2]
        digest = hashlib.sha256(bytes.fromhex(digits).ljust(108, b"\0")).hexdigest()
        name = b"\0sbus-admin/" + digest.encode().ljust(96, b"\0")

        def is_turned_away() -> bool:
            try:
                with Admin(name) as admin:
                    reply = admin.exchange(b'{"verb": "stats"}')
                    assert admin.sock.recv(10) == b"", "the connection is over"
                    return bool(reply["error"]["code"] == "not-allowed")
            except (ConnectionResetError, BrokenPipeError):
                return True

        assert as_user(is_turned_away)
        with Admin(name) as admin:
            assert admin.ask("version")["pid"] == bus.process.pid


def test_no_reply_waits_for_a_worker_that_hangs(tmp_path: Path) -> None:
    with running_bus(tmp_path) as bus, ExitStack() as stack:
        ((first,), (second,)) = stack.enter_context(clients_on_each(bus, 2))
        admin = stack.enter_context(administer(bus))
        by_worker = {
            client["worker"]: client["client"] for client in admin.ask("clients")["clients"]
        }
        for pid in worker_pids(bus).values():
            stack.enter_context(stopped(pid))
        longest_seconds = 0.0

        def ask_at_once(verb: str, **words: Any) -> Any:
            nonlocal longest_seconds
            began_at = time.monotonic()
            reply = admin.ask(verb, **words)
            longest_seconds = max(longest_seconds, time.monotonic() - began_at)
            return reply

        assert ask_at_once("stats")["clients"] == 2
        assert len(ask_at_once("workers")["workers"]) == 2
        assert ask_at_once("users")["users"]
        limits = ask_at_once("limit", uid=os.getuid(), limits={"connections_max": 5})
        assert limits["after"]["connections_max"] == 5
        assert ask_at_once("kick", client=by_worker[0], text="go")["uid"] == os.getuid()
        assert longest_seconds < 2.0, "what waits for a worker waits for two seconds"
        # Whether it wants to be told, only its worker knows.
        assert first.receive_until_closed() == []
        found = admin.ask("clients", after=by_worker[0])
        assert found["unanswered"] == [1]
        assert [client["activity"] for client in found["clients"]] == [None]
        assert admin.ask("explain", key="a")["unanswered"] == [0, 1]
        second.receive_nothing()


def test_a_new_limit_takes_effect_at_once(bus: Bus) -> None:
    uid = os.getuid()
    with bus.connect() as client, administer(bus) as admin:
        client.control(b"!/notices/on")
        before = admin.ask("limit", uid=uid)["before"]
        assert admin.ask("limit", uid=uid, limits={"subscriptions_max": 2, "connections_max": 1})[
            "after"
        ] == {**before, "subscriptions_max": 2, "connections_max": 1}
        client.sub(b"a")
        client.sub(b"b")
        (refusal,) = client.sync()
        assert refusal.startswith(b"CMSG !/error\0too-many-patterns ")
        with bus.connect() as second:
            assert second.receive().startswith(b"CMSG !/error\0too-many-connections ")
        (user,) = (user for user in admin.ask("users")["users"] if user["uid"] == uid)
        assert (user["connections"], user["subscriptions"]) == (1, 1)
        assert user["limits"]["subscriptions_max"] == 2
        admin.ask("limit", uid=uid, limits={"subscriptions_max": 200})
        client.sub(b"b")
        assert client.sync() == []


def test_a_draining_bus_accepts_no_client_and_ends_with_the_last(tmp_path: Path) -> None:
    with running_bus(tmp_path) as bus:
        with bus.connect() as client, administer(bus) as admin, events_of(bus) as stream:
            client.sub(b"k")
            client.sync()
            assert admin.ask("drain")["clients"] == 1
            assert stream.next("draining")["clients"] == 1
            assert admin.ask("stats")["draining"]
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as late:
                late.connect(bus.address)
                late.send(b"CMSG !/cred/whoami")
                client.pub(b"k", b"still served")
                assert client.sync() == [b"MSG k\0still served"]
                assert admin.ask("stats")["clients"] == 1
        assert bus.process.wait(60) == 0
