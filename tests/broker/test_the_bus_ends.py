"""The bus ends as a whole, on request or after the death of the front or fork server."""

import os
import signal
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.support.bus import Bus, running_bus, wait_until_gone
from tests.support.processes import (
    clients_on_each,
    clients_with_notices,
    fork_server_pid,
    several_clients,
    worker_pids,
)
from tests.support.raw_client import RawClient
from tests.support.threads import Task

GONE_SECONDS_MAX = 60.0
FAILED = b"CMSG !/error\0bus-failed a process of the bus has failed, and the bus ends"


def check_told(clients: list[RawClient]) -> None:
    """All but the clients of the stopped worker are told that the bus has failed."""
    told = Counter(tuple(client.receive_until_closed()) for client in clients)
    assert told.keys() <= {(FAILED,), ()}
    assert told[FAILED,] >= 4


def assert_all_gone(pids: list[int]) -> None:
    for pid in pids:
        assert wait_until_gone(pid, GONE_SECONDS_MAX), f"process {pid} of {pids} goes on"


def test_no_process_outlives_the_front(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=3) as bus, clients_with_notices(bus, 6) as clients:
        pids = bus.pids()
        assert len(pids) == 5
        os.kill(worker_pids(bus)[1], signal.SIGSTOP)
        bus.process.kill()
        bus.process.wait(GONE_SECONDS_MAX)
        assert_all_gone(pids)
        assert not os.path.lexists(bus.address), "its socket is left"
        assert bus.stderr_text().endswith("died, and the bus ends; files left behind: nothing\n")
        check_told(clients)


def test_without_its_fork_server_the_bus_ends(tmp_path: Path) -> None:
    """It can no longer replace workers, so it reports that and ends, to be started again."""
    with running_bus(tmp_path, workers=3) as bus, clients_with_notices(bus, 6) as clients:
        pids = bus.pids()
        os.kill(worker_pids(bus)[1], signal.SIGSTOP)
        os.kill(fork_server_pid(bus), signal.SIGKILL)
        assert bus.process.wait(GONE_SECONDS_MAX) == 1
        assert_all_gone(pids)
        assert not os.path.lexists(bus.address), "its socket is left"
        assert "fork server" in bus.stderr_text()
        assert len(bus.stderr_text().splitlines()) == 1, bus.stderr_text()
        check_told(clients)


def test_a_stopped_fork_server_ends_with_the_bus(tmp_path: Path) -> None:
    soon = ("--limit", "stop_seconds_max=0.5")
    with running_bus(tmp_path, *soon, workers=3) as bus, several_clients(bus, 6) as clients:
        pids = bus.pids()
        os.kill(fork_server_pid(bus), signal.SIGSTOP)
        os.kill(worker_pids(bus)[1], signal.SIGSTOP)
        bus.process.terminate()
        assert bus.process.wait(GONE_SECONDS_MAX) == 0
        assert_all_gone(pids)
        for client in clients:
            assert client.receive() == b""


def publish_until_the_end(client: RawClient) -> None:
    """Publish without a pause; afterwards everything that was sent here can be read."""
    with suppress(BrokenPipeError, ConnectionResetError):
        while True:
            client.pub(b"flow", b"")
    assert set(client.receive_until_closed()) <= {b"MSG key\0"}


def test_clients_see_an_orderly_end_in_full_traffic(bus: Bus) -> None:
    """Most of the clients have sent something that nobody will read any more."""
    with clients_on_each(bus, 2, 2) as places:
        clients = [*places[0], *places[1]]
        for client in clients:
            client.sub(b"key")
            client.whoami()
        clients[0].pub(b"key", b"")
        clients[0].sync()
        tasks = [Task(partial(publish_until_the_end, client)) for client in clients]
        assert not tasks[0].ends_within(0.1)
        bus.process.send_signal(signal.SIGTERM)
        for task in tasks:
            task.join()
        assert bus.process.wait(GONE_SECONDS_MAX) == 0
