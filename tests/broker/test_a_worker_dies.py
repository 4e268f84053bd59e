"""A worker that dies is replaced at once; only its own clients are disconnected, in an orderly way.

Messages between the other clients are neither lost nor doubled nor reordered (PROTOCOL, "Promises",
5, as far as it is built).
"""

import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.bus import Bus, running_bus, wait_until_gone
from tests.support.processes import (
    client_of_replacement,
    clients_on_each,
    descriptors,
    descriptors_at_rest,
    is_replaced,
    several_clients,
    worker_pids,
)
from tests.support.threads import wait_until
from tests.support.traffic import Stream, flowing

GONE_SECONDS_MAX = 10.0


def kill_worker(bus: Bus, worker: int, signum: signal.Signals = signal.SIGKILL) -> int:
    """Returns the id of the process, which is gone."""
    pid = worker_pids(bus)[worker]
    os.kill(pid, signum)
    assert wait_until_gone(pid, GONE_SECONDS_MAX)
    return pid


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_only_its_own_clients_are_disconnected(tmp_path: Path, signum: signal.Signals) -> None:
    """Only the front obeys SIGTERM: a worker that gets it by mistake continues to serve."""
    with running_bus(tmp_path, workers=3) as bus, clients_on_each(bus, 3, 2) as places:
        if signum == signal.SIGTERM:
            os.kill(worker_pids(bus)[1], signum)
        else:
            kill_worker(bus, 1, signum)
            for client in places.pop(1):
                assert client.receive() == b""
        for clients in places:
            for client in clients:
                client.whoami()


def test_clients_see_an_orderly_end_although_packets_were_unread(tmp_path: Path) -> None:
    """What the worker had sent before can be read up to the end."""
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2, 2) as (own, _):
        client, neighbour = own
        client.sub(b"k")
        client.whoami()
        for number in range(20):
            neighbour.pub(b"k", b"%d" % number)
        neighbour.whoami()
        os.kill(worker_pids(bus)[0], signal.SIGSTOP)
        for _ in range(100):
            client.pub(b"k", b"unread")
        kill_worker(bus, 0)
        messages = client.receive_until_closed()
        assert messages == [b"MSG k\0%d" % number for number in range(20)]
        assert neighbour.receive() == b""


def test_the_replacement_serves_clients(tmp_path: Path) -> None:
    """It knows the subscriptions on other workers, and the others learn those of its clients."""
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2) as ((old,), (other,)):
        other.sub(b"to other")
        old.sub(b"to new")
        old.sub(b"forgotten")
        for client in (old, other):
            client.whoami()
        died = kill_worker(bus, 0)
        assert old.receive() == b""
        with client_of_replacement(bus, 0, died) as client:
            client.pub(b"to other", b"1")
            assert other.receive() == b"MSG to other\x001"
            other.pub(b"to new", b"nobody there")
            other.whoami()
            client.sub(b"to new")
            client.whoami()
            other.pub(b"to new", b"2")
            other.pub(b"forgotten", b"3")
            other.whoami()
            assert client.sync() == [b"MSG to new\x002"]


def test_twenty_deaths_under_load(tmp_path: Path) -> None:
    """The streams run through the workers that live, and everything goes to those that die too."""
    workers, deaths = 7, 20
    with (
        running_bus(tmp_path, workers=workers) as bus,
        several_clients(bus, 3 * workers) as clients,
    ):
        first, second = clients[0::workers], clients[1::workers]
        streams = [
            Stream(first[0], first[1], b"same"),
            Stream(first[2], second[0], b"other"),
            Stream(second[1], second[2], b"other way"),
        ]
        own = {worker: clients[worker::workers] for worker in range(2, workers)}
        with flowing(*streams), ExitStack() as stack:
            for number in range(deaths):
                victim = 2 + number % (workers - 2)
                for client in own.get(victim, ()):
                    client.sub(b"")
                    client.sync()
                died = kill_worker(bus, victim, (signal.SIGKILL, signal.SIGSEGV)[number % 2])
                for client in own.pop(victim, ()):
                    client.receive_until_closed()
                wait_until(partial(is_replaced, bus, victim, died), f"worker {victim} lives again")
                newcomers = [stack.enter_context(bus.connect()) for _ in range(3)]
                for newcomer in newcomers:
                    newcomer.whoami()
        assert all(stream.received > 100 for stream in streams)


def test_a_stopped_worker_can_be_killed(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2) as ((old,), (other,)):
        os.kill(worker_pids(bus)[0], signal.SIGSTOP)
        old.pub(b"k", b"")
        died = kill_worker(bus, 0)
        assert old.receive() == b""
        other.whoami()
        with client_of_replacement(bus, 0, died) as client:
            client.sub(b"k")
            client.whoami()
            other.pub(b"k", b"payload")
            assert client.receive() == b"MSG k\0payload"


def test_no_descriptor_leaks(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus:
        expected = sorted(descriptors_at_rest(bus).values())
        for _ in range(4):
            with several_clients(bus, 10):
                died = kill_worker(bus, 0)
            with client_of_replacement(bus, 0, died):
                pass
            wait_until(
                lambda: sorted(descriptors(bus).values()) == expected,
                f"descriptors {expected} again",
            )
