"""A worker that dies is replaced at once, and its clients stay connected.

Its successor has their subscriptions and settings. What was only in the dead worker's memory is
lost, and clients with notices on are told. Messages between the other clients are neither lost nor
doubled nor reordered (docs/protocol.md, "Promises", 5).
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.broker.death_pauses import measure_pause
from tests.support.admin import administer, own_user
from tests.support.bus import Bus, running_bus, wait_until_gone
from tests.support.processes import (
    clients_on_each,
    descriptors,
    descriptors_at_rest,
    is_replaced,
    several_clients,
    worker_pids,
)
from tests.support.threads import wait_until
from tests.support.traffic import Stream, flowing

GONE_SECONDS_MAX = 60.0


def kill_worker(bus: Bus, worker: int, signum: signal.Signals = signal.SIGKILL) -> int:
    """Returns the id of the process, which is gone."""
    pid = worker_pids(bus)[worker]
    os.kill(pid, signum)
    assert wait_until_gone(pid, GONE_SECONDS_MAX)
    return pid


def let_turns_end(bus: Bus) -> None:
    """Wait until the workers have noted as done what they have answered: they answer the front
    between turns."""
    with administer(bus) as admin:
        admin.ask("clients")


@contextmanager
def dying(bus: Bus, worker: int) -> Iterator[None]:
    """The worker does nothing during the block, and is dead behind it."""
    let_turns_end(bus)
    os.kill(worker_pids(bus)[worker], signal.SIGSTOP)
    yield
    kill_worker(bus, worker)


def replace_worker(bus: Bus, worker: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Kill a worker, and wait until a successor runs."""
    let_turns_end(bus)
    died = kill_worker(bus, worker, signum)
    wait_until(partial(is_replaced, bus, worker, died), f"worker {worker} lives again")


def test_a_client_that_leaves_meanwhile_is_forgotten(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus, clients_on_each(bus, 2, 2) as (own, (other, _)):
        for client in own:
            client.sub(b"k")
            client.whoami()
        with dying(bus, 0):
            own[0].close()
        own[1].whoami()
        with administer(bus) as admin:
            wait_until(lambda: len(admin.ask("clients")["clients"]) == 3, "it is forgotten")
            assert [one["client"] for one in admin.ask("subs")["subscriptions"]] == [3]
            assert own_user(admin)["subscriptions"] == 1
        other.pub(b"k", b"1")
        assert own[1].receive() == b"MSG k\x001"


def test_a_client_that_was_never_served_is_served(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=1) as bus, several_clients(bus, 1):
        with dying(bus, 0):
            newcomer = bus.connect()
            newcomer.sub(b"k")
            wait_until(partial(has_clients, bus, 2), "it was admitted")
        with newcomer:
            newcomer.whoami()
            newcomer.pub(b"k", b"1")
            assert newcomer.receive() == b"MSG k\x001"


def has_clients(bus: Bus, count: int) -> bool:
    with administer(bus) as admin:
        return bool(admin.ask("stats")["clients"] == count)


def test_deaths_under_load(tmp_path: Path) -> None:
    """The streams run through the workers that live, and everything goes to those that die too."""
    workers, deaths = 5, 6
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
        with flowing(*streams):
            for number in range(deaths):
                victim = 2 + number % (workers - 2)
                for client in own[victim]:
                    client.sub(b"%d" % number)
                    client.sync()
                replace_worker(bus, victim, (signal.SIGKILL, signal.SIGSEGV)[number % 2])
                with bus.connect() as newcomer:
                    newcomer.whoami()
                for client in own[victim]:
                    client.sync()
                    first[0].pub(b"%d" % number, b"")
                    first[0].sync()
                    assert b"MSG %d\0" % number in client.sync()
        assert all(stream.received > 100 for stream in streams)


def test_the_pause_at_a_death_can_be_measured(tmp_path: Path) -> None:
    """The successor replies to all, and has all subscriptions; the measurement checks both."""
    pause = measure_pause(tmp_path, clients=20, subscriptions=3)
    assert 0 < pause.first_ms <= pause.median_ms <= pause.last_ms


def test_no_descriptor_leaks(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus:
        expected = sorted(descriptors_at_rest(bus).values())
        for _ in range(3):
            with several_clients(bus, 10) as clients:
                replace_worker(bus, 0)
                for client in clients:
                    client.whoami()
        wait_until(
            lambda: (
                len(descriptors(bus)) == len(expected)
                and sum(descriptors(bus).values()) <= sum(expected) + EVENT_LOOPS
            ),
            f"descriptors {expected} again",
        )


EVENT_LOOPS = 20
"""Descriptors that workers have once they serve, and not while they stand by."""
