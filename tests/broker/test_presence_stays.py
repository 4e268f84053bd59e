"""A name outlives its worker, a move and an upgrade; what tells of its end comes exactly once."""

import os
import signal
from pathlib import Path

from tests.broker.test_a_worker_dies import dying, replace_worker
from tests.support.admin import administer
from tests.support.bus import Bus
from tests.support.moves import move
from tests.support.presence import join, leave, members
from tests.support.processes import clients_on_each, worker_pids
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until
from tests.support.upgrades import changing_bus, upgrade

UID, GID, PID = os.geteuid(), os.getegid(), os.getpid()
EVERYBODY = b"!/presence/*/*"


def watch(client: RawClient) -> None:
    client.sub(EVERYBODY)
    client.sub(b"will")
    client.whoami()


def end_of(name: bytes, client: int, reason: bytes = b"left") -> list[bytes]:
    """What tells that this client has gone."""
    ids = b"%d %d %d" % (client, GID, PID)
    return [
        b"MSG will\0of %b" % name,
        b"MSG !/presence/%d/%b\0leave %b %b" % (UID, name, ids, reason),
    ]


def test_a_dead_worker_is_no_leave(bus: Bus) -> None:
    with clients_on_each(bus, 2, 2) as ((member, another), (watcher, _)):
        assert join(member, b"a", b"will\0of a") == ""
        watch(watcher)
        for _ in range(2):
            replace_worker(bus, 0)
            assert watcher.sync() == []
            assert [it.name for it in members(watcher, b"*/*")] == [b"a"]
            assert join(another, b"a") == "name-taken"
        member.close()
        assert [watcher.receive(), watcher.receive()] == end_of(b"a", 1)
        assert watcher.sync() == []
        assert join(another, b"a") == ""


def test_a_client_that_goes_with_its_worker_is_told_of_once(bus: Bus) -> None:
    with clients_on_each(bus, 2, 2) as ((member, another), (watcher, _)):
        assert join(member, b"a", b"will\0of a") == ""
        watch(watcher)
        with dying(bus, 0):
            member.close()
        assert [watcher.receive(), watcher.receive()] == end_of(b"a", 1)
        another.whoami()
        assert watcher.sync() == []
        assert members(another, b"*/*") == []


def test_a_moved_client_is_no_leave(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((member,), (watcher,)), administer(bus) as admin:
        assert join(member, b"a", b"will\0of a") == ""
        watch(watcher)
        for worker in (1, 0, 1):
            wait_until(lambda: move(admin, 1, worker) == "", "it was moved")  # noqa: B023
            assert watcher.sync() == []
            assert join(member, b"b") == "has-name"
        replace_worker(bus, 1)
        assert watcher.sync() == []
        assert leave(member) == b"a"
        assert watcher.receive() == end_of(b"a", 1, b"gave-up")[1]
        assert join(member, b"b", b"will\0of b") == ""
        assert b"/b\0join" in watcher.receive()
        wait_until(lambda: move(admin, 1, 0) == "", "it was moved")
        member.close()
        assert [watcher.receive(), watcher.receive()] == end_of(b"b", 1)
        assert watcher.sync() == []


def test_an_upgraded_bus_has_the_names_of_the_one_before(tmp_path: Path) -> None:
    with changing_bus(tmp_path) as changing:
        bus = changing.bus
        with clients_on_each(bus, 2, 2) as ((member, another), (watcher, _)):
            assert join(member, b"a", b"will\0of a") == ""
            assert join(another, b"b", b"will\0of b") == ""
            for publisher in (member, another):  # so that the new workers read the table at once
                publisher.pub(b"before", b"")
            watch(watcher)
            for _ in range(2):
                upgrade(bus)
                assert watcher.sync() == []
                assert [it.name for it in members(watcher, b"*/*")] == [b"a", b"b"]
                assert join(watcher, b"a") == "name-taken"
            member.close()
            assert [watcher.receive(), watcher.receive()] == end_of(b"a", 1)
            assert leave(another) == b"b"
            assert len(watcher.sync()) == 1


def test_a_client_is_told_of_that_goes_during_an_upgrade(tmp_path: Path) -> None:
    with changing_bus(tmp_path) as changing:
        bus = changing.bus
        with clients_on_each(bus, 2, 2) as ((member, _), (watcher, _)):
            assert join(member, b"a", b"will\0of a") == ""
            watch(watcher)
            pids = worker_pids(bus)
            os.kill(pids[0], signal.SIGSTOP)
            member.close()
            os.kill(pids[0], signal.SIGCONT)
            upgrade(bus)
            assert [watcher.receive(), watcher.receive()] == end_of(b"a", 1)
            assert watcher.sync() == []
            assert members(watcher, b"*/*") == []
