"""A name outlives its worker, a move and an upgrade; what tells of its end comes exactly once."""

import os
import signal
from pathlib import Path

from tests.broker.test_a_worker_dies import dying
from tests.support.bus import Bus
from tests.support.presence import join, members
from tests.support.processes import clients_on_each, worker_pids
from tests.support.raw_client import RawClient
from tests.support.upgrades import changing_bus, upgrade

UID, GID, PID = os.geteuid(), os.getegid(), os.getpid()
EVERYBODY = b"!/presence/*/*"


def watch(client: RawClient) -> None:
    client.sub(EVERYBODY)
    client.sub(b"will")
    client.whoami()


def end_of(name: bytes, client: int) -> list[bytes]:
    """What tells that this client has gone."""
    ids = b"%d %d %d" % (client, GID, PID)
    return [
        b"MSG will\0of %b" % name,
        b"MSG !/presence/%d/%b\0leave %b left" % (UID, name, ids),
    ]


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
