"""The end of a connection: its client learns why in the last packet, if it wants notices."""

import os
import signal
from contextlib import ExitStack

import pytest

from tests.support.admin import administer
from tests.support.bus import Bus
from tests.support.processes import (
    clients_on_each,
    clients_with_notices,
    stopped,
    worker_pids,
)
from tests.support.raw_client import RawClient
from tests.support.streams import events_of

ERROR = b"CMSG !/error\0"
STOPPING = ERROR + b"stopping the bus ends, or is restarted"
DRAINING = ERROR + b"draining the bus was drained, and the time for clients to leave is over"
GONE_SECONDS_MAX = 60.0
LARGE = b"MSG k\0" + b"x" * 100_000


def with_notices(client: RawClient) -> None:
    client.control(b"!/notices/on")
    client.whoami()


def number_of_last(bus: Bus) -> int:
    """The number of the client that connected last."""
    with administer(bus) as admin:
        return max(int(found["client"]) for found in admin.ask("clients")["clients"])


def fill_socket(bus: Bus, client: RawClient) -> None:
    """Have a client leave unread as much as the kernel keeps for it, and more."""
    with_notices(client)
    client.sub(b"k")
    client.whoami()
    with bus.connect() as publisher:
        for _ in range(12):
            publisher.send(LARGE)
        publisher.whoami()
        with bus.connect() as neighbour:  # on the client's worker, where all has arrived then
            neighbour.whoami()


# -- the bus ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_bus_that_stops_says_so(bus: Bus, signum: signal.Signals) -> None:
    with clients_on_each(bus, 2, 2) as places:
        for told, _ in places:
            told.control(b"!/notices/on")
            told.sub(b"k")
            told.whoami()
        places[1][1].pub(b"k", b"")
        places[1][1].whoami()
        bus.process.send_signal(signum)
        for told, not_told in places:
            assert told.receive_until_closed() == [b"MSG k\0", STOPPING]
            assert not_told.receive_until_closed() == []
        assert bus.process.wait(GONE_SECONDS_MAX) == 0


def test_a_bus_that_was_drained_says_so(bus: Bus) -> None:
    with clients_with_notices(bus, 4) as clients, administer(bus) as admin:
        admin.ask("drain", timeout_seconds=0)
        for client in clients:
            assert client.receive_until_closed() == [DRAINING]
        assert bus.process.wait(GONE_SECONDS_MAX) == 0


def test_a_signal_ends_a_draining_bus_that_has_time_left(bus: Bus) -> None:
    with clients_with_notices(bus, 4) as clients, administer(bus) as admin:
        admin.ask("drain")
        bus.process.send_signal(signal.SIGTERM)
        for client in clients:
            assert client.receive_until_closed() == [STOPPING]
        assert bus.process.wait(GONE_SECONDS_MAX) == 0


def test_the_front_says_it_for_workers_that_hang(bus: Bus) -> None:
    with clients_with_notices(bus, 4) as clients:
        for pid in worker_pids(bus).values():
            os.kill(pid, signal.SIGSTOP)
        bus.process.send_signal(signal.SIGTERM)
        for client in clients:
            assert client.receive_until_closed() == [STOPPING]
        assert bus.process.wait(GONE_SECONDS_MAX) == 0


def test_who_connects_while_the_bus_ends_is_told(bus: Bus) -> None:
    with events_of(bus) as stream:
        for pid in worker_pids(bus).values():
            os.kill(pid, signal.SIGSTOP)
        bus.process.send_signal(signal.SIGTERM)
        stream.next("bus-stopping")
        with bus.connect() as late:
            late.send(b"SUB k")
            assert late.receive_until_closed() == [STOPPING]
        assert bus.process.wait(GONE_SECONDS_MAX) == 0


def test_a_client_that_reads_in_time_is_told_behind_what_it_had_not_read(bus: Bus) -> None:
    with bus.connect() as client:
        fill_socket(bus, client)
        bus.process.send_signal(signal.SIGTERM)
        packets = client.receive_until_closed()
        assert packets[-1] == STOPPING
        assert set(packets[:-1]) == {LARGE}
        assert bus.process.wait(GONE_SECONDS_MAX) == 0


# -- one client's connection ends ------------------------------------------------------------------


def test_a_kicked_client_of_a_worker_that_hangs_is_told(bus: Bus) -> None:
    with bus.connect() as told, bus.connect() as not_told, administer(bus) as admin:
        with_notices(told)
        not_told.whoami()
        last = number_of_last(bus)
        with ExitStack() as stack:
            for pid in worker_pids(bus).values():
                stack.enter_context(stopped(pid))
            for number in (last - 1, last):
                admin.ask("kick", client=number, text="why")
            assert told.receive_until_closed() == [ERROR + b"kicked why"]
            assert not_told.receive_until_closed() == []
